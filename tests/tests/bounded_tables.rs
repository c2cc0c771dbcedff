//! Every table of bounded size that an agent's input fills: a test that crowds it, or why nobody can be crowded out.
//!
//! A constant `MOST...` or `MAX...` in a crate that holds such tables, or one named in `OTHERS`, has to be on the list.

use crate::architecture::{top, tracked};

/// What keeps junk from mattering.
enum Crowding {
    /// A test that fills the table with junk and shows that what matters is kept.
    Tested(&'static str),
    /// Not a table: the size of one thing, which is refused or cut.
    Size,
    /// Why nobody else's entries are in it, or what is lost is safe to lose.
    Harmless(&'static str),
}

use Crowding::{Harmless, Size, Tested};

const CRATES: [&str; 5] = [
    "crates/egress/src/*.rs",
    "crates/supervisor/src/*.rs",
    "crates/lease/src/*.rs",
    "crates/mcp/src/*.rs",
    "crates/client/src/*.rs",
];

/// Tables whose bounds have other names.
const OTHERS: [&str; 4] = ["CERTIFICATES", "HOSTS", "MEMORY", "WATCHERS"];

const TABLES: &[(&str, &str, Crowding)] = &[
    (
        "supervisor/src/connects.rs",
        "MOST_ADDRESSES",
        Tested("junk_addresses_are_counted_and_leave_loopback_ports_their_rows"),
    ),
    (
        "supervisor/src/connects.rs",
        "MOST_PORTS",
        Tested("junk_addresses_are_counted_and_leave_loopback_ports_their_rows"),
    ),
    (
        "supervisor/src/leases/facts.rs",
        "MOST_LISTED",
        Tested("what_the_host_would_execute_is_found_with_and_without_a_list"),
    ),
    // How many names a reason prints; all of them decide.
    ("lease/src/task.rs", "MOST_TOLD", Size),
    ("supervisor/src/path_lookup.rs", "MOST_READ", Size),
    ("egress/src/buffers.rs", "MOST", Size),
    ("egress/src/http/head.rs", "MOST_FIELDS", Size),
    ("egress/src/http/head.rs", "MOST_EMPTY", Size),
    (
        "egress/src/limits.rs",
        "HOSTS",
        Tested("many_hosts_share_a_count"),
    ),
    (
        "egress/src/names.rs",
        "MOST",
        Tested("junk_below_a_wildcard_leaves_room_for_names_that_rules_have"),
    ),
    (
        "egress/src/names.rs",
        "MOST_EXACT",
        Tested("junk_below_a_wildcard_leaves_room_for_names_that_rules_have"),
    ),
    ("egress/src/order.rs", "MAX", Size),
    ("egress/src/order.rs", "MAX_FDS", Size),
    ("egress/src/reader/process.rs", "MOST_RUINED", Size),
    (
        "egress/src/resolve.rs",
        "MEMORY",
        Tested("junk_that_is_remembered_makes_room_for_what_comes_later"),
    ),
    (
        "egress/src/serve.rs",
        "MOST",
        Tested("many_connections_are_carried_and_idle_ones_do_not_stop_others"),
    ),
    (
        "egress/src/tls/authority.rs",
        "CERTIFICATES",
        Harmless("a certificate that is gone is made again"),
    ),
    (
        "egress/src/traffic_log.rs",
        "WATCHERS",
        Harmless("the operator's own"),
    ),
    ("egress/src/wire.rs", "MAX", Size),
    ("egress/src/wire.rs", "MAX_FDS", Size),
    (
        "lease/src/announced.rs",
        "MOST_OF_A_KIND",
        Tested("junk_in_the_models_words_does_not_crowd_out_what_contradicts"),
    ),
    (
        "lease/src/cedar/reading.rs",
        "MOST_RULES",
        Harmless("the operator's own"),
    ),
    (
        "lease/src/cedar/reading.rs",
        "MOST_PATHS",
        Harmless("the operator's own"),
    ),
    (
        "lease/src/history.rs",
        "MOST_OPEN",
        Tested("too_many_requests_and_too_many_leases_are_refused_with_their_reason"),
    ),
    (
        "lease/src/history.rs",
        "MOST_OPEN_BY_AGENT",
        Tested("too_many_requests_and_too_many_leases_are_refused_with_their_reason"),
    ),
    (
        "lease/src/history.rs",
        "MOST_ASKED",
        Tested("too_many_requests_and_too_many_leases_are_refused_with_their_reason"),
    ),
    (
        "supervisor/src/signing/part.rs",
        "MOST_RECORDED",
        Tested("a_flood_of_denials_is_counted_and_leaves_uses_their_lines"),
    ),
    ("supervisor/src/audit_writer.rs", "MOST_WORDS", Size),
    (
        "supervisor/src/channels.rs",
        "MOST_RECORDED",
        Harmless("of one channel; what is left out is counted"),
    ),
    (
        "supervisor/src/children/part.rs",
        "MOST_RECORDED",
        Tested("a_denied_child_is_logged_and_told_and_a_flood_of_them_only_told"),
    ),
    (
        "supervisor/src/control/hold.rs",
        "MAX_WAITING",
        Harmless("commands of the operator, who asked for each"),
    ),
    (
        "supervisor/src/control/mod.rs",
        "MAX_CLIENTS",
        Harmless("processes of the operator: the cage does not reach this socket"),
    ),
    (
        "supervisor/src/control/mod.rs",
        "MAX_RECORDED",
        Harmless("processes of other users of the host"),
    ),
    (
        "supervisor/src/execs/mod.rs",
        "MAX_EXECS",
        Tested("many_at_once_all_get_their_own_answer"),
    ),
    (
        "supervisor/src/intents/part.rs",
        "MOST_CALLS",
        Tested("more_calls_than_can_be_told_apart_are_logged_and_not_looked_up"),
    ),
    (
        "supervisor/src/intents/part.rs",
        "MOST_LATER",
        Harmless("a need beyond it is denied and logged"),
    ),
    (
        "supervisor/src/intents/part.rs",
        "MOST_DENIED",
        Tested("denied_calls_are_recorded_up_to_a_bound_and_looked_up_never"),
    ),
    (
        "supervisor/src/intents/part.rs",
        "MOST_REMOVALS",
        Tested("removals_are_recorded_up_to_a_bound"),
    ),
    (
        "supervisor/src/intents/trust.rs",
        "MOST_HOSTS",
        Tested("a_crowd_of_hosts_never_makes_a_cage_more_trusted"),
    ),
    (
        "supervisor/src/leases/pace.rs",
        "MOST_IN_ONE_GO",
        Tested("a_flood_of_requests_neither_fills_the_record_nor_shuts_others_out"),
    ),
    (
        "supervisor/src/log.rs",
        "MOST",
        Tested("however_much_is_written_two_files_of_a_bounded_size_are_kept"),
    ),
    (
        "supervisor/src/network/denials.rs",
        "MOST_FIRST",
        Tested("junk_hides_a_denied_host_neither_before_it_nor_after"),
    ),
    (
        "supervisor/src/network/denials.rs",
        "MOST_LAST",
        Tested("junk_hides_a_denied_host_neither_before_it_nor_after"),
    ),
    (
        "supervisor/src/network/part.rs",
        "MOST_RULES",
        Harmless("the operator's own, and leases, which have bounds of their own"),
    ),
    (
        "supervisor/src/network/part.rs",
        "MOST_PUBLISHED",
        Harmless("the operator's own"),
    ),
    (
        "supervisor/src/output.rs",
        "MAX_SOURCES",
        Harmless("streams of commands that the operator started"),
    ),
    (
        "supervisor/src/output.rs",
        "MAX_ATTACHED",
        Harmless("processes of the operator"),
    ),
    (
        "supervisor/src/permission_requests/mod.rs",
        "MOST",
        Tested("a_flood_of_requests_neither_fills_the_record_nor_shuts_others_out"),
    ),
    (
        "supervisor/src/permission_requests/mod.rs",
        "MOST_OF_ONE",
        Tested("a_flood_of_requests_neither_fills_the_record_nor_shuts_others_out"),
    ),
    (
        "supervisor/src/permission_requests/mod.rs",
        "MOST_AN_HOUR",
        Tested("questions_of_one_kind_leave_others_a_share_of_the_hour"),
    ),
    (
        "supervisor/src/permission_requests/mod.rs",
        "MOST_AN_HOUR_OF_ONE",
        Tested("questions_of_one_kind_leave_others_a_share_of_the_hour"),
    ),
    (
        "supervisor/src/permission_requests/mod.rs",
        "MOST_WAITING",
        Harmless("those that wait for the same answer; one more is told to ask again"),
    ),
    (
        "supervisor/src/permission_requests/mod.rs",
        "MOST_TOGETHER",
        Tested("a_group_is_bounded_and_counts_as_one_question"),
    ),
    (
        "supervisor/src/signing/mod.rs",
        "MOST_FILTERS",
        Harmless("a cage that ends its key filter again and again loses its own keys"),
    ),
    (
        "supervisor/src/signing/part.rs",
        "MOST_WAITING",
        Tested("no_more_wait_than_a_person_could_answer"),
    ),
    (
        "supervisor/src/signing/process.rs",
        "MOST",
        Tested("an_agent_is_not_changed_and_a_flood_does_not_end_it"),
    ),
    (
        "supervisor/src/signing/process.rs",
        "MOST_READ",
        Tested("an_agent_is_not_changed_and_a_flood_does_not_end_it"),
    ),
    (
        "supervisor/src/permission_requests/mod.rs",
        "MOST_REMEMBERED",
        Tested("nothing_of_the_last_hour_is_pushed_out_of_memory"),
    ),
    (
        "supervisor/src/permission_requests/notifier.rs",
        "MOST",
        Harmless("each request is in the list of the operator whether or not a notifier ran"),
    ),
    (
        "supervisor/src/request_reader/mod.rs",
        "MOST_READERS",
        Harmless("of the cage's own requests alone"),
    ),
    (
        "supervisor/src/request_reader/process.rs",
        "MOST",
        Harmless("others wait in the socket"),
    ),
    (
        "supervisor/src/request_reader/process.rs",
        "MOST_READ",
        Harmless("of the cage's own requests alone; others wait"),
    ),
    (
        "supervisor/src/request_reader/process.rs",
        "MOST_PATHS",
        Size,
    ),
    (
        "supervisor/src/request_reader/received.rs",
        "MOST_GIVEN",
        Size,
    ),
    ("supervisor/src/path_lookup.rs", "MOST_READ", Size),
    (
        "supervisor/src/scope/judge.rs",
        "MOST_JUDGED",
        Harmless("those of one command; the rest ask"),
    ),
    ("supervisor/src/scope/mod.rs", "MOST_OF_A_CALL", Size),
    (
        "supervisor/src/scope/mod.rs",
        "MOST_SHELLS",
        Harmless("the bound is what leaves the operator's scopes their room"),
    ),
    ("supervisor/src/scope/shell.rs", "MOST", Size),
    (
        "supervisor/src/scope/supervisor.rs",
        "MOST_RECORDED",
        Tested("what_a_shells_command_names_floods_no_record"),
    ),
    (
        "supervisor/src/taint/places.rs",
        "MOST",
        Tested("nothing_that_was_leased_is_left_out_however_much_there_is"),
    ),
    ("supervisor/src/untrusted_fds.rs", "MOST", Size),
    (
        "client/src/tool_calls.rs",
        "MOST",
        Harmless("beyond it a call fails at once, and its user is told"),
    ),
    (
        "client/src/tool_calls.rs",
        "MOST_OF_TOOL",
        Tested("junk_calls_of_a_tool_leave_room_for_calls_of_others"),
    ),
    ("client/src/call.rs", "MOST_OUTPUT", Size),
    (
        "mcp/src/gateway.rs",
        "MOST_REFUSED",
        Harmless("log entries of one server's own refused requests; they stay refused beyond it"),
    ),
    ("mcp/src/lines.rs", "MOST_VALUES", Size),
    ("mcp/src/server/cage.rs", "MOST_OUTPUT", Size),
    ("mcp/src/server/tools.rs", "MOST_DIFF", Size),
    ("mcp/src/upstream.rs", "MOST_PAGES", Size),
    (
        "mcp/src/upstream.rs",
        "MOST_TOOLS",
        Harmless("a server has a list of its own, and a tool beyond it cannot be called"),
    ),
    (
        "mcp/src/upstream.rs",
        "MOST_WAITING",
        Harmless("messages of one request to its own client, which the server waits to send"),
    ),
];

/// The name of a constant that bounds something, where a line declares one.
fn bound(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("const ")?;
    let (name, kind) = after.split_once(": ")?;
    let is_number = ["usize", "u32", "u64"]
        .iter()
        .any(|number| kind.starts_with(number));
    let is_bound = name.starts_with("MOST") || name.starts_with("MAX") || OTHERS.contains(&name);
    let is_declaration = before.trim().is_empty() || before.trim_start().starts_with("pub");
    (is_number && is_bound && is_declaration).then_some(name)
}

#[test]
fn every_bounded_table_has_a_crowding_test_or_a_reason() {
    let mut seen = Vec::new();
    for file in tracked(&CRATES) {
        let text = std::fs::read_to_string(&file).expect("text");
        let relative = file
            .strip_prefix(top().join("crates"))
            .expect("a crate")
            .display()
            .to_string();
        // What comes after is a file's own tests.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for name in code.lines().filter_map(bound) {
            seen.push((relative.clone(), name.to_owned()));
        }
    }
    let listed = |place: &(String, String)| {
        TABLES
            .iter()
            .any(|(file, name, _)| (*file, *name) == (&*place.0, &*place.1))
    };
    let new: Vec<_> = seen.iter().filter(|place| !listed(place)).collect();
    assert!(
        new.is_empty(),
        "crowd these with junk in a test, or say why that is harmless: {new:#?}"
    );
    let gone = TABLES.iter().filter(|(file, name, _)| {
        !seen
            .iter()
            .any(|place| (&*place.0, &*place.1) == (*file, *name))
    });
    let gone: Vec<_> = gone.map(|(file, name, _)| (file, name)).collect();
    assert!(gone.is_empty(), "take off the list: {gone:#?}");
    let sources: String = tracked(&["crates/*.rs", "tests/*.rs"])
        .iter()
        .map(|file| std::fs::read_to_string(file).expect("text"))
        .collect();
    for (file, name, crowding) in TABLES {
        match crowding {
            Tested(test) => assert!(
                sources.contains(&format!("fn {test}(")),
                "{file} {name}: there is no test {test}"
            ),
            Harmless(why) => assert!(why.len() > 10, "{file} {name}: {why}"),
            Size => {}
        }
    }
}
