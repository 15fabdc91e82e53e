-- Keys are kept byte for byte (G11, G12): whatever a producer takes for an id is an id, two that
-- differ are two messages, and one is found again as it was given.
SELECT inbox_declare_sequence('keys', '1 day');
SELECT inbox_sequence('keys', 'context') AS instance \gset

CREATE TEMP TABLE key (place int GENERATED ALWAYS AS IDENTITY, what text, value text);
INSERT INTO key (what, value) VALUES
    ('plain', 'evt-1'),
    ('upper case', 'EVT-1'),
    ('blank behind', 'evt-1 '),
    ('blank in front', ' evt-1'),
    ('a blank', ' '),
    ('quote', 'it''s'),
    ('two quotes', 'it''''s'),
    ('double quote', 'say "evt"'),
    ('backslash', 'a\b'),
    ('two backslashes', 'a\\b'),
    ('looks like a newline', 'a\nb'),
    ('newline', E'a\nb'),
    ('carriage return', E'a\rb'),
    ('tab', E'a\tb'),
    ('control character', E'a\x01b'),
    ('emoji', '🙈'),
    ('emoji of several parts', '👩‍👩‍👧'),
    ('composed', U&'caf\00e9'),
    ('decomposed', U&'cafe\0301'),
    ('sharp s', 'straße'),
    ('ss', 'strasse'),
    ('no-break space', U&'a\00a0b'),
    ('zero width space', U&'a\200bb'),
    ('right to left', U&'\202eevt'),
    ('format', '%s'),
    ('formats', '%d%n%1$s%'),
    ('like', 'evt%'),
    ('like for one', 'evt__'),
    ('placeholder', '{s}'),
    ('parameter', '$1'),
    ('injection', '''); DROP TABLE inbox_claim_0; --'),
    ('comment', '-- evt'),
    ('json', '{"id": 1}'),
    ('array', '{evt-1,evt-2}'),
    ('null', 'NULL'),
    ('comma', 'evt,1'),
    ('number', '1'),
    ('number with zeros', '01'),
    ('uuid', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'),
    ('one byte', 'x'),
    ('1024 bytes', repeat('x', 1024)),
    ('512 characters, 1024 bytes', repeat('é', 512)),
    -- As long as the index takes it, with a name of 512 bytes in front.
    ('1024 bytes that do not compress', (SELECT left(string_agg(md5(n::text), ''), 1024) FROM generate_series(1, 40) n));
SELECT count(*) AS keys, count(DISTINCT value) AS different FROM key;

-- As message id, idempotence id and context id: each wins once, whatever its neighbours are.
CREATE TEMP TABLE won AS
    SELECT place, inbox_claim('keys', value) AS plain, inbox_claim('keys', value, :instance) AS sequenced,
           inbox_sequence('keys', value) AS context
    FROM key ORDER BY place;
SELECT count(*) FILTER (WHERE plain) AS plain, count(*) FILTER (WHERE sequenced) AS sequenced,
       count(DISTINCT context) AS contexts FROM won;
SELECT what FROM key WHERE inbox_claim('keys', value) OR inbox_claim('keys', value, :instance)
    OR inbox_try_claim('keys', value) <> 'duplicate' OR inbox_try_claim('keys', value, :instance) <> 'duplicate';
SELECT what FROM key JOIN won USING (place) WHERE inbox_sequence('keys', value) <> context;
SELECT what FROM key, inbox_lookup('keys', value) GROUP BY what, place
    HAVING array_agg(kind ORDER BY kind COLLATE "C") <> '{consumer,sequence}' ORDER BY place;

-- What is stored is what was given.
SELECT what FROM key
    LEFT JOIN inbox_claim_0 p ON p.consumer = 'keys' AND p.message_id = key.value COLLATE "C"
    LEFT JOIN sequential_inbox_idempotence s ON s.message_type = 'keys' AND s.idempotence_id = key.value COLLATE "C"
    LEFT JOIN sequence_instance i ON i.name = 'keys' AND i.context_id = key.value COLLATE "C"
    WHERE convert_to(key.value, 'UTF8') IS DISTINCT FROM convert_to(p.message_id, 'UTF8')
        OR convert_to(key.value, 'UTF8') IS DISTINCT FROM convert_to(s.idempotence_id, 'UTF8')
        OR convert_to(key.value, 'UTF8') IS DISTINCT FROM convert_to(i.context_id, 'UTF8');

-- In batches, in the caller's order; the sorting inside does not show.
SELECT inbox_claim_batch('keys in a batch', array_agg(value ORDER BY place DESC)) = array_agg(true) AS won FROM key;
SELECT inbox_claim_batch('keys in a batch', array_agg(value ORDER BY place)) = array_agg(false) AS duplicates FROM key;
SELECT what FROM key WHERE inbox_claim('keys in a batch', value);

-- As consumer, message type and sequence name; those are half as long.
SELECT count(*) AS names, bool_and(inbox_claim(value, 'named') AND NOT inbox_claim(value, 'named')) AS plain,
       bool_and(inbox_claim(value, 'named', :instance) AND NOT inbox_claim(value, 'named', :instance)) AS sequenced
    FROM key WHERE octet_length(value) <= 512;
CREATE TEMP TABLE declared AS
    SELECT place, inbox_declare_sequence(value, '1 day', jsonb_build_array(jsonb_build_object('type', value)))::text,
           inbox_sequence(value, 'context') AS id
    FROM key WHERE octet_length(value) <= 512;
SELECT count(DISTINCT id) = (SELECT count(*) FROM declared) AS instances FROM declared;
SELECT what FROM key JOIN declared USING (place), inbox_receive(value, value, 'context', convert_to(value, 'UTF8'))
    WHERE decision <> 'process' OR sequence_instance_id <> id;
SELECT what FROM key JOIN declared USING (place), inbox_receive(value, value, 'context') WHERE decision <> 'duplicate';
SELECT inbox_claim(left(value, 512), value), inbox_claim(left(value, 512), value, :instance) FROM key
    WHERE what = '1024 bytes that do not compress';

-- Failed, released and annotated, each finds its own and no other.
SELECT bool_and(inbox_annotate('keys', value, jsonb_build_object('what', what))) FROM key;
SELECT what FROM key, inbox_lookup('keys', value) l WHERE l.kind = 'consumer' AND attributes ->> 'what' <> what;
SELECT bool_and(inbox_fail('keys', value, :instance, what)) FROM key;
SELECT what FROM key, inbox_lookup('keys', value) l
    WHERE kind = 'sequence' AND (claimed_at IS NOT NULL OR state <> 'FAILED' OR attempts <> 1 OR last_error <> what);
SELECT bool_and(inbox_release('keys', value)) FROM key;
SELECT count(*) FROM inbox_claims WHERE id1 = 'keys';

-- The separator that a concatenated key would have is no way from one key to another (G12).
SELECT inbox_claim('a', 'bc') AS a_bc, inbox_claim('ab', 'c') AS ab_c, inbox_claim('abc', ' ') AS abc;

-- The payload is no key: any bytes, empty too.
SELECT inbox_fail('keys', 'payload', NULL, NULL, '0', decode(string_agg(lpad(to_hex(n), 2, '0'), ''), 'hex'), '', '{}')
    FROM generate_series(0, 255) n;
SELECT md5(payload), octet_length(message_key), headers FROM inbox_next();
