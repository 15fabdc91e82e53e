//! The methods of level 1, written once: the two drivers differ in nothing but `async` and
//! `.await`, and one list of methods keeps them equal.

/// Expands to the methods of an `Inbox`. The arguments are `async` and `.await`, or nothing in
/// their place, the receiver, and the `self` of it.
///
/// The type has a method `run` that executes a [`Statement`](crate::statement::Statement).
macro_rules! inbox_methods {
    ([$($async:ident)?] [$($await:tt)*] [$($receiver:tt)+] $self:ident) => {
        /// Claims a message for a plain consumer, waiting while another transaction has it in
        /// flight.
        ///
        /// The consumer is the stable name of one handler, at most 512 bytes; the message id is
        /// the producer's, at most 1024 bytes.
        ///
        /// # Errors
        ///
        /// 22023 for an empty consumer or id, 22001 for one too long, 25006 in a read-only
        /// transaction; 55P03 and 57014 when waiting exceeds `lock_timeout` or
        /// `statement_timeout`; 40P01 and 40001, which are
        /// [retryable](crate::Error::is_retryable).
        pub $($async)? fn claim(
            $($receiver)+,
            consumer: &str,
            message_id: &str,
        ) -> Result<$crate::Claim, $crate::Error> {
            $self.run($crate::statement::claim(consumer, message_id))$($await)*
        }

        /// Like [`claim`](Self::claim), but never waits for another transaction.
        ///
        /// # Errors
        ///
        /// Those of [`claim`](Self::claim), less the time-outs of waiting.
        pub $($async)? fn try_claim(
            $($receiver)+,
            consumer: &str,
            message_id: &str,
        ) -> Result<$crate::TryClaim, $crate::Error> {
            $self.run($crate::statement::try_claim(consumer, message_id))$($await)*
        }

        /// Like [`claim`](Self::claim) with the canonical text of the uuid.
        ///
        /// The other methods take that text too: `id.hyphenated().to_string()`.
        ///
        /// # Errors
        ///
        /// Those of [`claim`](Self::claim).
        #[cfg(feature = "uuid")]
        #[cfg_attr(docsrs, doc(cfg(feature = "uuid")))]
        pub $($async)? fn claim_uuid(
            $($receiver)+,
            consumer: &str,
            message_id: uuid::Uuid,
        ) -> Result<$crate::Claim, $crate::Error> {
            $self.run($crate::statement::claim_uuid(consumer, message_id))$($await)*
        }

        /// Like [`try_claim`](Self::try_claim) with the canonical text of the uuid.
        ///
        /// # Errors
        ///
        /// Those of [`try_claim`](Self::try_claim).
        #[cfg(feature = "uuid")]
        #[cfg_attr(docsrs, doc(cfg(feature = "uuid")))]
        pub $($async)? fn try_claim_uuid(
            $($receiver)+,
            consumer: &str,
            message_id: uuid::Uuid,
        ) -> Result<$crate::TryClaim, $crate::Error> {
            $self.run($crate::statement::try_claim_uuid(consumer, message_id))$($await)*
        }

        /// Claims a message of a sequence, waiting while another transaction has it in flight. The
        /// claim lives as long as the instance, which [`sequence`](Self::sequence) gives.
        ///
        /// This checks for a duplicate and nothing else; [`receive`](Self::receive) also keeps the
        /// order.
        ///
        /// # Errors
        ///
        /// Those of [`claim`](Self::claim), and 23503 when the instance does not exist any more:
        /// call [`sequence`](Self::sequence) again.
        pub $($async)? fn claim_sequenced(
            $($receiver)+,
            message_type: &str,
            idempotence_id: &str,
            sequence_instance_id: i64,
        ) -> Result<$crate::Claim, $crate::Error> {
            $self.run($crate::statement::claim_sequenced(
                message_type,
                idempotence_id,
                sequence_instance_id,
            ))$($await)*
        }

        /// Like [`claim_sequenced`](Self::claim_sequenced), but never waits for another
        /// transaction.
        ///
        /// # Errors
        ///
        /// Those of [`claim_sequenced`](Self::claim_sequenced), less the time-outs of waiting.
        pub $($async)? fn try_claim_sequenced(
            $($receiver)+,
            message_type: &str,
            idempotence_id: &str,
            sequence_instance_id: i64,
        ) -> Result<$crate::TryClaim, $crate::Error> {
            $self.run($crate::statement::try_claim_sequenced(
                message_type,
                idempotence_id,
                sequence_instance_id,
            ))$($await)*
        }

        /// Claims a whole poll of messages for a plain consumer in one call.
        ///
        /// The answers are in the order of the ids; a repeat within the batch is a duplicate. The
        /// keys are taken in sorted order, so that two batches never deadlock each other.
        ///
        /// # Errors
        ///
        /// Those of [`claim`](Self::claim); one bad id refuses the batch, and nothing is claimed.
        pub $($async)? fn claim_batch<S: AsRef<str> + Sync>(
            $($receiver)+,
            consumer: &str,
            message_ids: &[S],
        ) -> Result<Vec<$crate::Claim>, $crate::Error> {
            $self.run($crate::statement::claim_batch(consumer, message_ids))$($await)*
        }

        /// Merges attributes (a JSON object: source, trace id, the handler's result) into a plain
        /// claim. `false`: there is no such claim.
        ///
        /// # Errors
        ///
        /// 22023 for an empty consumer or id, or attributes that are not an object; 22001; 25006.
        pub $($async)? fn annotate(
            $($receiver)+,
            consumer: &str,
            message_id: &str,
            attributes: &serde_json::Value,
        ) -> Result<bool, $crate::Error> {
            $self.run($crate::statement::annotate(consumer, message_id, attributes))$($await)*
        }

        /// All that the inbox knows of a consumer and a message id, or of a message type and an
        /// idempotence id. A pair that is both gives two records, an unknown one none.
        ///
        /// # Errors
        ///
        /// 22023 for an empty id; 22001. It works in a read-only transaction and on a standby.
        pub $($async)? fn lookup(
            $($receiver)+,
            first_id: &str,
            second_id: &str,
        ) -> Result<Vec<$crate::Record>, $crate::Error> {
            $self.run($crate::statement::lookup(first_id, second_id))$($await)*
        }

        /// Deletes a plain claim, so that a replay of the message is handled again. An operator's
        /// call. `false`: there is no such claim.
        ///
        /// # Errors
        ///
        /// 22023 for an empty consumer or id; 22001; 25006; 42501 without the operator's grant.
        pub $($async)? fn release(
            $($receiver)+,
            consumer: &str,
            message_id: &str,
        ) -> Result<bool, $crate::Error> {
            $self.run($crate::statement::release(consumer, message_id))$($await)*
        }

        /// Records that a message failed and deletes its claim, so that a resend can win. Call it
        /// in a new transaction, after the handler's was rolled back.
        ///
        /// `false`: the message is already processed or skipped, and nothing was changed.
        ///
        /// # Errors
        ///
        /// 22023 for an empty type or id; 22004 for `retry_after` without a payload given or stored;
        /// 22001; 25006; 23503 when the instance does not exist any more.
        pub $($async)? fn fail(
            $($receiver)+,
            failure: &$crate::Failure<'_>,
        ) -> Result<bool, $crate::Error> {
            $self.run($crate::statement::fail(failure))$($await)*
        }

        /// Like [`fail`](Self::fail), by the id that [`receive`](Self::receive) or
        /// [`next`](Self::next) gave.
        ///
        /// # Errors
        ///
        /// Those of [`fail`](Self::fail).
        pub $($async)? fn fail_message(
            $($receiver)+,
            message_id: i64,
            error: Option<&str>,
            retry_after: Option<std::time::Duration>,
        ) -> Result<bool, $crate::Error> {
            $self.run($crate::statement::fail_message(message_id, error, retry_after))$($await)*
        }

        /// The id of the sequence instance for a context id, created if need be, under any
        /// concurrency.
        ///
        /// # Errors
        ///
        /// 42704 when the sequence is not declared; 22023 for an empty name or context id; 22001;
        /// 25006.
        pub $($async)? fn sequence(
            $($receiver)+,
            sequence_name: &str,
            context_id: &str,
        ) -> Result<i64, $crate::Error> {
            $self.run($crate::statement::sequence(sequence_name, context_id))$($await)*
        }

        /// Takes a message of a sequence in: instance, claim, release condition and record in one
        /// call. What to do is in [`Received::decision`](crate::Received).
        ///
        /// Waits while another transaction handles the same message or its instance.
        ///
        /// # Errors
        ///
        /// 42704 when no sequence has the message type; 22023 for an empty type, id or context id,
        /// or a position below 1; 22004 when a sequence ordered by position gets none; 22001; 25006; 55P03 and 57014 when waiting exceeds `lock_timeout` or
        /// `statement_timeout`; 40P01 and 40001, which are
        /// [retryable](crate::Error::is_retryable).
        pub $($async)? fn receive(
            $($receiver)+,
            message: &$crate::Message<'_>,
        ) -> Result<$crate::Received, $crate::Error> {
            $self.run($crate::statement::receive(message, true))$($await)*
        }

        /// Like [`receive`](Self::receive), but never waits for another transaction: it decides
        /// [`Decision::InFlight`](crate::Decision::InFlight) instead, and records nothing.
        ///
        /// # Errors
        ///
        /// Those of [`receive`](Self::receive), less the time-outs of waiting.
        pub $($async)? fn try_receive(
            $($receiver)+,
            message: &$crate::Message<'_>,
        ) -> Result<$crate::Received, $crate::Error> {
            $self.run($crate::statement::receive(message, false))$($await)*
        }

        /// Hands out the next message that may be handled now and records it as processed in this
        /// transaction; `None` when there is none.
        ///
        /// With an instance id: of that instance, waiting for its lock. With `None`: of any
        /// instance, skipping locked ones; what a sweeper calls.
        ///
        /// # Errors
        ///
        /// 23503 when the instance does not exist any more; 25006 in a read-only transaction; 55P03
        /// and 57014 when waiting exceeds `lock_timeout` or `statement_timeout`; 40P01 and 40001,
        /// which are [retryable](crate::Error::is_retryable).
        pub $($async)? fn next(
            $($receiver)+,
            sequence_instance_id: impl Into<Option<i64>>,
        ) -> Result<Option<$crate::Released>, $crate::Error> {
            $self.run($crate::statement::next(sequence_instance_id.into()))$($await)*
        }

        /// Declares a sequence, or replaces its declaration as a whole.
        ///
        /// # Errors
        ///
        /// All with the culprit named. 22023: an empty name, a retention that is not positive, a
        /// type twice, an unknown predecessor, a cycle, an empty `and` or `or`. 42710: a type of
        /// another sequence. 55006: a dropped type that still has unfinished messages. 42501
        /// without the operator's grant.
        pub $($async)? fn declare_sequence(
            $($receiver)+,
            sequence: &$crate::Sequence,
        ) -> Result<(), $crate::Error> {
            $self.run($crate::statement::declare_sequence(sequence)?)$($await)*
        }

        /// Drops a sequence's declaration.
        ///
        /// # Errors
        ///
        /// 42704 when the sequence is not declared; 2BP01 while it has instances; 42501 without the
        /// operator's grant.
        pub $($async)? fn drop_sequence(
            $($receiver)+,
            sequence_name: &str,
        ) -> Result<(), $crate::Error> {
            $self.run($crate::statement::drop_sequence(sequence_name))$($await)*
        }

        /// Makes a failed message wait or ready again. An operator's call. `false`: its state no
        /// longer allows it.
        ///
        /// # Errors
        ///
        /// 25006; 42501 without the operator's grant.
        pub $($async)? fn retry($($receiver)+, message_id: i64) -> Result<bool, $crate::Error> {
            $self.run($crate::statement::on_message("inbox_retry", message_id))$($await)*
        }

        /// Makes a waiting or failed message ready, whatever its release condition. An operator's
        /// call. `false`: its state no longer allows it.
        ///
        /// # Errors
        ///
        /// 25006; 42501 without the operator's grant.
        pub $($async)? fn force($($receiver)+, message_id: i64) -> Result<bool, $crate::Error> {
            $self.run($crate::statement::on_message("inbox_force", message_id))$($await)*
        }

        /// Gives a message up: it counts as processed without being handled. An operator's call.
        /// `false`: its state no longer allows it.
        ///
        /// # Errors
        ///
        /// 25006; 42501 without the operator's grant.
        pub $($async)? fn skip($($receiver)+, message_id: i64) -> Result<bool, $crate::Error> {
            $self.run($crate::statement::on_message("inbox_skip", message_id))$($await)*
        }

        /// Gives up the missing positions before the first message that waits, in a sequence
        /// ordered by position. An operator's call. `false`: there is no gap.
        ///
        /// # Errors
        ///
        /// 25006; 42501 without the operator's grant.
        pub $($async)? fn skip_gap(
            $($receiver)+,
            sequence_instance_id: i64,
        ) -> Result<bool, $crate::Error> {
            $self.run($crate::statement::on_instance(
                "inbox_skip_gap",
                sequence_instance_id,
            ))$($await)*
        }

        /// Makes every waiting message of an instance ready, whatever its release condition. An
        /// operator's call. `false`: nothing waits.
        ///
        /// # Errors
        ///
        /// 25006; 42501 without the operator's grant.
        pub $($async)? fn force_all(
            $($receiver)+,
            sequence_instance_id: i64,
        ) -> Result<bool, $crate::Error> {
            $self.run($crate::statement::on_instance(
                "inbox_force_all",
                sequence_instance_id,
            ))$($await)*
        }

        /// Closes an instance. An operator's call. `false`: its state no longer allows it.
        ///
        /// # Errors
        ///
        /// 25006; 42501 without the operator's grant.
        pub $($async)? fn close(
            $($receiver)+,
            sequence_instance_id: i64,
        ) -> Result<bool, $crate::Error> {
            $self.run($crate::statement::on_instance(
                "inbox_close",
                sequence_instance_id,
            ))$($await)*
        }

        /// Does one bounded batch of housekeeping; `None` takes the extension's batch size. While
        /// [`more`](crate::Housekeeping) is true, commit and call it again.
        ///
        /// # Errors
        ///
        /// 22023 for a batch size that is not positive; 42501 without the operator's grant.
        pub $($async)? fn housekeeping(
            $($receiver)+,
            batch_size: impl Into<Option<i32>>,
        ) -> Result<$crate::Housekeeping, $crate::Error> {
            $self.run($crate::statement::housekeeping(batch_size.into()))$($await)*
        }

        /// Grants a role exactly what that access needs.
        ///
        /// # Errors
        ///
        /// 42704 when there is no such role; 42501 unless called by the extension's owner or a
        /// superuser.
        pub $($async)? fn grant(
            $($receiver)+,
            role_name: &str,
            access: $crate::Access,
        ) -> Result<(), $crate::Error> {
            $self.run($crate::statement::grant(role_name, access))$($await)*
        }
    };
}
pub(crate) use inbox_methods;
