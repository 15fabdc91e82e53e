-- What goes wrong while the examples run, once each: a handler's INSERT into the ledger fails as
-- it may in production. Run it after setup.sql, or leave it out for a quiet run.
--
-- That a fault has happened is remembered in a sequence, which no rollback takes back.

\set ON_ERROR_STOP 1

-- Fails at its first call with the SQLSTATE of its first argument; the second is the sequence that
-- counts the calls. 57P01 ends the session, as a failover or an administrator does.
CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, public AS $$
BEGIN
    IF nextval(TG_ARGV[1]::regclass) > 1 THEN
        RETURN NEW;
    END IF;
    IF TG_ARGV[0] = '57P01' THEN
        PERFORM pg_terminate_backend(pg_backend_pid());
        -- The signal interrupts this.
        PERFORM pg_sleep(60);
    END IF;
    RAISE EXCEPTION 'the ledger is closed for a moment' USING ERRCODE = TG_ARGV[0];
END
$$;

-- Another transaction was faster: the whole transaction has to be run again, wherever it failed.
CREATE SEQUENCE serialization_failure;
CREATE TRIGGER serialization_failure BEFORE INSERT ON ledger FOR EACH ROW
    WHEN (NEW.message_id = 'evt-11') EXECUTE FUNCTION fail_once('40001', 'serialization_failure');

CREATE SEQUENCE serialization_failure_at_commit;
CREATE CONSTRAINT TRIGGER serialization_failure_at_commit AFTER INSERT ON ledger
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.message_id = 'evt-05')
    EXECUTE FUNCTION fail_once('40001', 'serialization_failure_at_commit');

-- The same for a message that the inbox hands out.
CREATE SEQUENCE deadlock;
CREATE TRIGGER deadlock BEFORE INSERT ON ledger FOR EACH ROW
    WHEN (NEW.message_id = 'evt-09') EXECUTE FUNCTION fail_once('40P01', 'deadlock');

-- The handler fails: a message from the broker goes back to it. For evt-12 a copy comes first.
CREATE SEQUENCE failure;
CREATE TRIGGER failure BEFORE INSERT ON ledger FOR EACH ROW
    WHEN (NEW.message_id = 'evt-12') EXECUTE FUNCTION fail_once('P0001', 'failure');

CREATE SEQUENCE another_failure;
CREATE TRIGGER another_failure BEFORE INSERT ON ledger FOR EACH ROW
    WHEN (NEW.message_id = 'evt-32') EXECUTE FUNCTION fail_once('P0001', 'another_failure');

-- One that the inbox handed out has nobody to go back to, and its failure is recorded.
CREATE SEQUENCE failure_of_released;
CREATE TRIGGER failure_of_released BEFORE INSERT ON ledger FOR EACH ROW
    WHEN (NEW.message_id = 'evt-07') EXECUTE FUNCTION fail_once('P0001', 'failure_of_released');

-- The connection is lost in the middle of the transaction. Whoever acknowledged the message before
-- the commit has lost it, too: it comes once only.
CREATE SEQUENCE lost_connection;
CREATE TRIGGER lost_connection BEFORE INSERT ON ledger FOR EACH ROW
    WHEN (NEW.message_id = 'evt-36') EXECUTE FUNCTION fail_once('57P01', 'lost_connection');
