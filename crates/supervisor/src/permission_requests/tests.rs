//! The part without a process: which effects follow from which events.

use super::*;
use ironcage_control::ApproveRequest;

#[test]
fn questions_of_one_kind_leave_others_a_share_of_the_hour() {
    let now = Instant::now();
    let mut questions = PermissionRequests::default();
    for _ in 0..MOST_AN_HOUR_OF_ONE {
        assert_eq!(
            questions.too_many_within_an_hour(LeaseOrigin::Ask, now),
            None
        );
        questions.recent.push((now, Some(LeaseOrigin::Ask)));
    }
    let refused = questions.too_many_within_an_hour(LeaseOrigin::Ask, now);
    assert_eq!(refused, Some(MOST_AN_HOUR_OF_ONE));
    assert_eq!(
        questions.too_many_within_an_hour(LeaseOrigin::Answer, now),
        None
    );
    questions.count(100, now);
    let refused = questions.too_many_within_an_hour(LeaseOrigin::Answer, now);
    assert_eq!(refused, Some(MOST_AN_HOUR));
    let later = now + Duration::from_secs(3600);
    assert_eq!(
        questions.too_many_within_an_hour(LeaseOrigin::Ask, later),
        None
    );
}

fn new(by: Requester, path: &str) -> NewRequest {
    NewRequest {
        by,
        origin: LeaseOrigin::Ask,
        resource: Resource::Path {
            path: path.into(),
            right: ironcage_model::Right::Read,
        },
        identity: None,
        grant: GrantRequest {
            wanted: ironcage_control::LeaseTarget::Path {
                right: ironcage_model::Right::Read,
            },
            term: Term::UntilRevoked,
            uses: None,
            reason: "test".into(),
        },
        descriptor: None,
        because: LeaseReason::ApprovalByRule {
            said: "the ceiling asks".into(),
        }
        .into(),
        announced: None,
    }
}

fn pending(effects: &[Effect]) -> Option<u32> {
    effects.iter().find_map(|effect| match effect {
        Effect::Report {
            outcome: RequestOutcome::Pending { question, .. },
            ..
        } => Some(*question),
        _ => None,
    })
}

fn ends(effects: &[Effect]) -> Vec<PermissionRequestEnd> {
    let ends = effects.iter().filter_map(|effect| match effect {
        Effect::Audit(EventKind::QuestionEnd { end, .. }) => Some(*end),
        _ => None,
    });
    ends.collect()
}

#[test]
fn a_request_is_recorded_before_anybody_is_told_and_the_same_again_joins_it() {
    let (mut part, now) = (PermissionRequests::default(), Instant::now());
    let effects = part.raise(vec![new(Requester::Inside(1), "/srv/a")], None, now);
    let position = |wanted: fn(&Effect) -> bool| effects.iter().position(wanted);
    let audit = position(|effect| matches!(effect, Effect::Audit(EventKind::Question(_))));
    let notify = position(|effect| matches!(effect, Effect::Notify(_)));
    assert!(audit.unwrap() < notify.unwrap());
    assert_eq!(pending(&effects), Some(1));
    let effects = part.raise(vec![new(Requester::Inside(2), "/srv/a")], None, now);
    assert_eq!(pending(&effects), Some(1));
    assert_eq!(effects.len(), 1);
    let effects = part.deny(Answerer::Client(9), 1, "no", now);
    assert_eq!(ends(&effects), [PermissionRequestEnd::Denied]);
    let told = effects.iter().filter(|effect| {
        matches!(
            effect,
            Effect::Report {
                outcome: RequestOutcome::Denied { .. },
                ..
            }
        )
    });
    assert_eq!(told.count(), 2);
    assert!(matches!(
        effects.last(),
        Some(Effect::Reply { client: 9, .. })
    ));
}

#[test]
fn what_was_denied_is_not_asked_again_for_a_while() {
    let now = Instant::now();
    let mut part = PermissionRequests {
        memory: Duration::from_secs(60),
        ..PermissionRequests::default()
    };
    part.raise(vec![new(Requester::Inside(1), "/srv/a")], None, now);
    part.deny(Answerer::Terminal, 1, "", now);
    let again = |part: &mut PermissionRequests, now| {
        pending(&part.raise(vec![new(Requester::Inside(1), "/srv/a")], None, now)).is_some()
    };
    assert!(!again(&mut part, now + Duration::from_secs(59)));
    assert!(again(&mut part, now + Duration::from_secs(61)));
}

#[test]
fn an_approved_request_is_asked_for_once_more_and_ends_with_what_comes_of_it() {
    let (mut part, now) = (PermissionRequests::default(), Instant::now());
    part.raise(vec![new(Requester::Inside(1), "/srv/a")], None, now);
    let request = ApproveRequest {
        number: 1,
        term: Some(Term::Milliseconds(5)),
        uses: None,
    };
    let person = Answerer::Client(9);
    let effects = part.approve(person, &request, now);
    assert_eq!(effects, [Effect::RequestApproved(1)]);
    // Answered once.
    assert!(matches!(
        &part.approve(person, &request, now)[..],
        [Effect::ReportToPerson { .. }]
    ));
    let asked = part.take_approved(1).unwrap();
    assert_eq!(asked.by, Requester::Approved(1));
    assert_eq!(asked.grant.term, Term::Milliseconds(5));
    let effects = part.opened(1, RequestOutcome::denied(LeaseReason::PathReplaced), now);
    assert_eq!(ends(&effects), [PermissionRequestEnd::NotOpened]);
    assert_eq!(effects.len(), 3);
}

#[test]
fn requests_expire_and_end_with_the_cage() {
    let now = Instant::now();
    let mut part = PermissionRequests {
        expire: Some(Duration::from_secs(1)),
        ..PermissionRequests::default()
    };
    part.raise(vec![new(Requester::Inside(1), "/srv/a")], None, now);
    assert!(part.tick(now).is_empty());
    let later = part.next().unwrap();
    assert_eq!(ends(&part.tick(later)), [PermissionRequestEnd::Expired]);
    part.raise(vec![new(Requester::Inside(1), "/srv/b")], None, later);
    assert_eq!(ends(&part.finish(later)), [PermissionRequestEnd::CageEnded]);
}

/// A denial that is forgotten is asked again; an agent that collects denials to have one forgotten
/// needs more than an hour of a person's answers for it.
#[test]
fn nothing_of_the_last_hour_is_pushed_out_of_memory() {
    const WITHIN_AN_HOUR: usize = MOST_AN_HOUR * MOST_TOGETHER;
    const { assert!(MOST_REMEMBERED > WITHIN_AN_HOUR) };
    let mut requests = PermissionRequests::default();
    let now = Instant::now();
    let memory = Duration::from_secs(3600);
    let resource = |number: usize| Resource::Path {
        path: format!("/srv/{number}"),
        right: ironcage_model::Right::Read,
    };
    for number in 0..WITHIN_AN_HOUR {
        requests.remember(resource(number), "no".into(), (now, memory));
    }
    for number in 0..WITHIN_AN_HOUR {
        let mut known = requests.denied.iter();
        assert!(
            known.any(|denied| denied.resource == resource(number)),
            "{number}"
        );
    }
    // It has an end, all the same.
    for number in 0..1000 {
        requests.remember(resource(number), "no".into(), (now, memory));
    }
    assert_eq!(requests.denied.len(), MOST_REMEMBERED);
}

fn command_needs(part: &mut PermissionRequests, paths: &[&str], now: Instant) -> Vec<Effect> {
    let of = |(index, path): (usize, &&str)| {
        let by = Requester::Scope {
            number: 7,
            ticket: index as u32,
        };
        new(by, path)
    };
    let all = paths.iter().enumerate().map(of).collect();
    part.raise(all, Some("cat a b"), now)
}

#[test]
fn what_one_command_needs_is_one_question_with_one_answer() {
    let (mut part, now) = (PermissionRequests::default(), Instant::now());
    let effects = command_needs(&mut part, &["/srv/a", "/srv/b", "/srv/c"], now);
    let notified = effects.iter().filter_map(|effect| match effect {
        Effect::Notify(requests) => Some(requests.len()),
        _ => None,
    });
    assert_eq!(notified.collect::<Vec<_>>(), [3]);
    let described = part.describe(now);
    let shown: Vec<(u32, Option<u32>)> = described
        .iter()
        .map(|one| (one.question.number, one.question.group))
        .collect();
    assert_eq!(shown, [(1, Some(1)), (2, Some(1)), (3, Some(1))]);
    assert_eq!(described[1].question.command.as_deref(), Some("cat a b"));
    assert_eq!(part.within_an_hour(now), 1);
    // Another command's question is not answered with it.
    command_needs(&mut part, &["/srv/d"], now);
    let yes = ApproveRequest {
        number: 2,
        term: None,
        uses: None,
    };
    let effects = part.approve(Answerer::Client(9), &yes, now);
    let granted = |effect: &&Effect| {
        matches!(
            effect,
            Effect::Report {
                outcome: RequestOutcome::Granted(_),
                ..
            }
        )
    };
    assert_eq!(effects.iter().filter(granted).count(), 3);
    let told = |effect: &&Effect| matches!(effect, Effect::ReportToPerson { .. });
    assert_eq!(effects.iter().filter(told).count(), 1);
    assert_eq!(ends(&effects), [PermissionRequestEnd::Approved; 3]);
    assert_eq!(part.describe(now).len(), 1);
}

#[test]
fn a_group_is_denied_as_a_whole_and_not_asked_again_in_part() {
    let now = Instant::now();
    let mut part = PermissionRequests {
        memory: Duration::from_secs(60),
        ..PermissionRequests::default()
    };
    command_needs(&mut part, &["/srv/a", "/srv/b"], now);
    let effects = part.deny(Answerer::Client(9), 1, "no", now);
    assert_eq!(ends(&effects), [PermissionRequestEnd::Denied; 2]);
    let replies = |effect: &&Effect| matches!(effect, Effect::Reply { .. });
    assert_eq!(effects.iter().filter(replies).count(), 1);
    // One that was denied before: nobody is asked for the other.
    let effects = command_needs(&mut part, &["/srv/b", "/srv/new"], now);
    assert_eq!((effects.len(), pending(&effects)), (2, None));
    assert!(part.describe(now).is_empty());
    assert!(pending(&command_needs(&mut part, &["/srv/new"], now)).is_some());
}

#[test]
fn a_yes_for_the_run_holds_for_later_commands_and_one_for_a_command_does_not() {
    for (term, again) in [(Some(Term::UntilRevoked), false), (None, true)] {
        let (mut part, now) = (PermissionRequests::default(), Instant::now());
        command_needs(&mut part, &["/srv/a", "/srv/b"], now);
        let yes = ApproveRequest {
            number: 1,
            term,
            uses: None,
        };
        part.approve(Answerer::Terminal, &yes, now);
        let later = now + Duration::from_secs(3600);
        let effects = command_needs(&mut part, &["/srv/a", "/srv/b"], later);
        assert_eq!(pending(&effects).is_some(), again, "{term:?}");
    }
}

#[test]
fn a_group_is_bounded_and_counts_as_one_question() {
    let (mut part, now) = (PermissionRequests::default(), Instant::now());
    let paths: Vec<String> = (0..20).map(|number| format!("/srv/{number}")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let effects = command_needs(&mut part, &paths, now);
    let denied = |effect: &&Effect| matches!(effect, Effect::DenyLease { .. });
    let refused = effects.iter().filter(denied).count();
    assert_eq!((refused, part.describe(now).len()), (4, MOST_TOGETHER));
    for number in 1..MOST_OF_ONE {
        let path = format!("/opt/{number}");
        assert!(pending(&command_needs(&mut part, &[&path], now)).is_some());
    }
    assert!(pending(&command_needs(&mut part, &["/opt/last"], now)).is_none());
}

#[test]
fn a_long_command_is_cut_and_says_so() {
    let shown = shown_command(&"x".repeat(COMMAND + 7));
    assert!(shown.ends_with("... and 7 characters more"), "{shown}");
    assert_eq!(shown_command("ls -l"), "ls -l");
}
