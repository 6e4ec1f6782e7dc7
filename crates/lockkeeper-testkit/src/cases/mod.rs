//! What every engine must show, named after the promises it shows.

pub mod cancel;
pub mod deadline;
pub mod exclusion;
pub mod idempotent;
pub mod lost;
pub mod multi;
pub mod order;
pub mod others;
pub mod owner;
pub mod people;
pub mod readers;
pub mod refusal;
pub mod token;
pub mod wake;

/// Hands the list of all cases to a macro: `every_case! { callback { arguments } }`.
///
/// The one list. A test compares it with the functions that exist.
#[macro_export]
macro_rules! every_case {
    ($callback:path { $($arguments:tt)* }) => {
        $callback! {
            { $($arguments)* }
            cancel: [
                a_cancelled_waiter_leaves_no_ticket,
                a_grant_nobody_reads_releases_itself,
                cancelling_at_every_engine_call_leaves_nothing,
                cancelling_after_every_poll_leaves_nothing,
                a_cancelled_release_goes_on,
                a_dropped_guard_frees_the_name,
                closing_a_keeper_gives_everything_back,
                the_last_drop_waits_for_releases_already_posted,
            ]
            deadline: [
                the_wait_bounds_the_acquisition,
                no_patience_still_asks_once,
                a_silent_engine_is_unreachable_in_time,
                local_waiters_of_a_silent_engine_end_together,
                an_outage_is_ridden_out_once_answered,
            ]
            exclusion: [
                a_second_holder_is_refused,
                many_tasks_of_many_keepers_never_overlap,
                a_silent_holder_is_followed_after_its_lease_and_not_before,
                min_hold_keeps_the_name_closed,
                lock_delay_follows_a_failed_holder_only,
            ]
            idempotent: [
                a_lost_grant_is_found_again,
                a_lost_release_counts_as_released,
                everything_twice_changes_nothing,
                a_lost_count_down_counts_once,
                a_late_acquire_of_a_finished_claim_is_refused,
            ]
            lost: [
                a_fresh_guard_is_held,
                a_silent_engine_is_at_risk_then_lost_in_time,
                a_short_outage_is_at_risk_and_then_held_again,
                a_broken_holder_learns_the_reason,
                a_broken_holder_keeps_others_out_until_it_lets_go,
                break_now_frees_at_once,
                held_too_long_is_lost_then_released,
                a_closed_keeper_loses_its_guards,
                verify_asks_the_engine,
                work_is_stopped_when_its_lock_is_lost,
                blocked_work_does_not_pass_for_done,
                an_engine_that_panics_loses_nothing_it_still_has,
            ]
            multi: [
                a_multi_lock_holds_every_name_or_none,
                opposite_orders_do_not_deadlock,
                a_multi_lock_is_lost_when_any_part_is,
                a_multi_lock_refuses_nonsense,
                a_multi_lock_spans_engines,
            ]
            order: [
                keepers_are_served_in_the_order_of_arrival,
                claims_of_one_keeper_are_served_in_order,
                a_keeper_with_many_claims_overtakes_by_one_at_a_time,
                try_lock_never_overtakes_and_leaves_nothing,
                a_dead_waiter_delays_the_queue_a_little,
                too_many_waiters_are_refused,
            ]
            others: [
                a_latch_opens_at_zero_for_everyone,
                a_latch_that_is_removed_is_gone,
                a_latch_can_be_waited_for_before_it_is_set,
                a_latch_is_never_reset_while_closed,
                a_latch_ends_when_its_time_is_over,
                a_fence_refuses_what_is_stale,
            ]
            owner: [
                a_late_release_never_frees_a_later_holder,
                a_renewal_never_revives,
                a_late_revoke_never_hits_a_later_holder,
            ]
            people: [
                status_tells_who_holds_and_who_waits,
                a_waiter_is_told_whom_it_waits_for,
                a_listing_has_pages,
            ]
            readers: [
                readers_share_and_writers_do_not,
                readers_wait_behind_a_waiting_writer,
                stepping_down_lets_readers_in_and_no_writer,
                permits_never_exceed_the_capacity,
                a_large_claim_is_not_starved,
                a_changed_capacity_is_told,
                permits_of_the_dead_come_back,
            ]
            refusal: [
                what_the_engine_cannot_do_is_refused_by_name,
                another_kind_on_a_name_is_invalid,
                another_capacity_is_invalid_and_named,
                upgrading_is_refused,
                bad_names_and_options_are_refused_unsent,
                any_text_is_a_name_and_all_differ,
            ]
            token: [
                tokens_grow_over_release_expiry_and_break,
                tokens_grow_over_many_cycles,
                re_entry_keeps_the_token,
                readers_and_permits_have_no_token,
                a_thread_re_enters_its_lock,
            ]
            wake: [
                a_push_alone_hands_the_lock_over,
                a_missed_push_costs_one_re_poll_at_most,
                one_release_wakes_one_waiter,
                a_release_wakes_a_batch_of_readers,
            ]
        }
    };
}

/// Names every case for one engine: `conformance! { memory: start::memory }`.
#[macro_export]
macro_rules! conformance {
    ($engine:ident: $start:path) => {
        #[doc = "Every case on this engine."]
        mod $engine {
            $crate::every_case! { $crate::conformance_tests { $start } }
        }
    };
}

/// The tests of one engine; called by [`conformance!`].
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ({ $start:path } $($group:ident: [ $($case:ident,)* ])*) => {
        $(
            mod $group {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        let stage = $start().await;
                        $crate::cases::$group::$case(&stage).await;
                    }
                )*
            }
        )*
    };
}
