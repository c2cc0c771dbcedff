//! The part without a terminal: which effects follow from which events.

use super::*;
use ironcage_model::{
    KeyPurpose, LeaseOrigin, LeaseReason, PermissionRequest, Resource, Right, Scope, Term,
};

const SIZE: Winsize = Winsize {
    ws_row: 40,
    ws_col: 120,
    ws_xpixel: 0,
    ws_ypixel: 0,
};
const FULL_SCREEN: Before = Before {
    alternate: true,
    no_cursor: true,
};

fn waiting(numbers: &[u32]) -> Vec<PermissionRequestDescription> {
    let of = |number: &u32| PermissionRequestDescription {
        question: PermissionRequest {
            number: *number,
            resource: Resource::Path {
                path: format!("/srv/{number}"),
                right: Right::Read,
            },
            scope: Scope::Cage,
            term: Term::UntilRevoked,
            uses: None,
            reason: "to build".into(),
            origin: LeaseOrigin::Ask,
            because: "the ceiling marks it ask".into(),
            code: None,
            announced: None,
            command: None,
            group: None,
        },
        asked: 1,
        milliseconds_left: 60_000,
        untold: None,
    };
    numbers.iter().map(of).collect()
}

fn facts<'a>(
    waiting: &'a [PermissionRequestDescription],
    screen: Before,
    now: Instant,
) -> PromptFacts<'a> {
    PromptFacts {
        waiting,
        asked: waiting.len() as u32,
        key: Some("Ctrl-^".into()),
        terminal: true,
        screen,
        size: SIZE,
        now,
    }
}

fn shown(effects: &[Effect]) -> String {
    let shown = effects.iter().filter_map(|effect| match effect {
        Effect::ShowOnTerminal(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    });
    shown.collect()
}

/// A prompt that the user opened for these requests.
fn opened(waiting: &[PermissionRequestDescription], now: Instant) -> Prompting {
    let mut prompting = Prompting::default();
    let effects = prompting.handle(
        PromptEvent::Tick { called: true },
        &facts(waiting, Before::default(), now),
    );
    assert_eq!(effects.first(), Some(&Effect::HoldOutput(true)));
    assert!(shown(&effects).contains("/srv/1"), "{effects:?}");
    prompting
}

fn type_keys(
    prompting: &mut Prompting,
    keys: &str,
    waiting: &[PermissionRequestDescription],
    now: Instant,
) -> Vec<Effect> {
    let facts = facts(waiting, Before::default(), now);
    let typed = keys.as_bytes().chunks(1);
    typed
        .flat_map(|key| prompting.handle(PromptEvent::Typed(key), &facts))
        .collect()
}

#[test]
fn the_status_line_takes_a_row_while_a_request_waits_and_gives_it_back() {
    let (now, mut prompting) = (Instant::now(), Prompting::default());
    let tick = || PromptEvent::Tick { called: false };
    let one = waiting(&[1]);
    let effects = prompting.handle(tick(), &facts(&one, Before::default(), now));
    assert!(effects.contains(&Effect::FitTerminal { smaller: true }));
    assert!(
        shown(&effects).contains("press Ctrl-^ to answer"),
        "{effects:?}"
    );
    assert!(!prompting.is_open());
    let again = prompting.handle(tick(), &facts(&one, Before::default(), now));
    assert_eq!(again, [], "nothing changed");
    let effects = prompting.handle(tick(), &facts(&[], Before::default(), now));
    assert!(effects.contains(&Effect::FitTerminal { smaller: false }));
}

#[test]
fn what_the_agent_draws_over_the_status_line_has_it_drawn_again() {
    let (now, mut prompting) = (Instant::now(), Prompting::default());
    let tick = || PromptEvent::Tick { called: false };
    let one = waiting(&[1]);
    prompting.handle(tick(), &facts(&one, Before::default(), now));
    assert_eq!(prompting.next(), None);
    prompting.drew(now);
    assert_eq!(prompting.next(), Some(now + REDRAWN));
    let effects = prompting.handle(tick(), &facts(&one, Before::default(), now + REDRAWN));
    assert!(shown(&effects).contains("/srv/1"));
    assert_eq!(prompting.next(), None);
}

/// When a key counts that is pressed once.
fn after_a_pause(now: Instant) -> Instant {
    now + Duration::from_secs(1)
}

#[test]
fn an_answer_is_one_key_after_a_pause_and_one_effect() {
    let now = Instant::now();
    let one = waiting(&[1]);
    let answered = |effects: &[Effect]| {
        let mut effects = effects.iter();
        effects.any(|effect| matches!(effect, Effect::AnswerAtPrompt { .. }))
    };
    for (key, choice) in [("a", Choice::Approve), ("d", Choice::Deny)] {
        let mut prompting = opened(&one, now);
        let typed_ahead = type_keys(&mut prompting, key, &one, now);
        assert!(!answered(&typed_ahead), "{typed_ahead:?}");
        let effects = type_keys(&mut prompting, key, &one, after_a_pause(now));
        assert_eq!(effects, [Effect::AnswerAtPrompt { number: 1, choice }]);
    }
    let mut prompting = opened(&one, now);
    let facts = facts(&one, Before::default(), after_a_pause(now));
    let pasted = prompting.handle(PromptEvent::Typed(b"a\r"), &facts);
    assert!(!answered(&pasted), "pasted keys are not an answer");
}

#[test]
fn a_key_is_approved_for_one_use_and_nothing_longer_is_offered() {
    let now = Instant::now();
    let mut one = waiting(&[1]);
    let longer = shown(&Prompting::default().handle(
        PromptEvent::Tick { called: true },
        &facts(&one, Before::default(), now),
    ));
    assert!(longer.contains("w always"), "{longer}");
    one[0].question.resource = Resource::Key {
        key: "/srv/1.pub".into(),
        purpose: KeyPurpose::Git,
    };
    let mut prompting = opened(&one, now);
    for key in ["a", "w"] {
        let later = after_a_pause(now) + Duration::from_secs(u64::from(key == "w"));
        let effects = type_keys(&mut prompting, key, &one, later);
        let screen = shown(&effects);
        assert!(screen.contains("one use at a time: press o"), "{screen}");
        assert!(!screen.contains("w always"), "{screen}");
    }
    let effects = type_keys(&mut prompting, "o", &one, now + Duration::from_secs(9));
    let choice = Choice::Once;
    assert_eq!(effects, [Effect::AnswerAtPrompt { number: 1, choice }]);
}

#[test]
fn without_a_terminal_each_question_is_told_once_with_the_command_that_answers() {
    let id: CageId = "c0123456789ab".parse().unwrap();
    let mut prompting = Prompting::default();
    let lines = prompting.waiting_lines(&id, &waiting(&[1]));
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].contains("`ironcage approve c0123456789ab/1`"),
        "{lines:?}"
    );
    assert_eq!(prompting.waiting_lines(&id, &waiting(&[1])), [""; 0]);
    assert_eq!(prompting.waiting_lines(&id, &waiting(&[1, 2])).len(), 1);
}

#[test]
fn the_requests_of_a_command_are_one_question() {
    let now = Instant::now();
    let mut all = waiting(&[1, 2, 3]);
    for one in all.iter_mut().take(2) {
        one.question.group = Some(1);
    }
    let mut prompting = Prompting::default();
    let tick = PromptEvent::Tick { called: false };
    let effects = prompting.handle(tick, &facts(&all, Before::default(), now));
    let status = shown(&effects);
    assert!(
        status.contains("2 questions") && status.contains("2 things"),
        "{status}"
    );
    let mut prompting = opened(&all, now);
    let effects = prompting.handle(PromptEvent::Resized, &facts(&all, Before::default(), now));
    let drawn = shown(&effects);
    assert!(drawn.contains("(1 of 2)"), "{drawn}");
    assert!(drawn.contains("/srv/1") && drawn.contains("/srv/2") && !drawn.contains("/srv/3"));
    // The next is the other question, and the one after it the first again.
    type_keys(&mut prompting, "n", &all, now);
    let effects = type_keys(&mut prompting, "a", &all, after_a_pause(now));
    let choice = Choice::Approve;
    assert_eq!(effects, [Effect::AnswerAtPrompt { number: 3, choice }]);
}

#[test]
fn a_request_that_does_not_fit_the_screen_can_be_denied_but_not_approved() {
    let now = Instant::now();
    let one = waiting(&[1]);
    let answers = |keys: &str, size: Winsize| {
        let mut prompting = opened(&one, now);
        let facts = PromptFacts {
            size,
            ..facts(&one, Before::default(), after_a_pause(now))
        };
        let typed = keys.as_bytes().chunks(1);
        let effects: Vec<Effect> = typed
            .flat_map(|key| prompting.handle(PromptEvent::Typed(key), &facts))
            .collect();
        let mut effects = effects.iter();
        effects.any(|effect| matches!(effect, Effect::AnswerAtPrompt { .. }))
    };
    let tiny = Winsize { ws_row: 3, ..SIZE };
    assert!(answers("a", SIZE));
    assert!(!answers("a", tiny));
    assert!(answers("d", tiny));
}

#[test]
fn a_request_that_is_over_gives_its_place_to_the_next_and_then_the_screen_back() {
    let now = Instant::now();
    let mut prompting = opened(&waiting(&[1, 2]), now);
    let tick = || PromptEvent::Tick { called: false };
    let effects = prompting.handle(tick(), &facts(&waiting(&[2]), Before::default(), now));
    assert!(shown(&effects).contains("/srv/2"));
    assert!(prompting.is_open());
    let effects = prompting.handle(tick(), &facts(&[], Before::default(), now));
    assert!(effects.contains(&Effect::HoldOutput(false)));
    assert!(!prompting.is_open());
}

#[test]
fn a_full_screen_agent_gets_its_size_back_after_it_has_drawn() {
    let (now, mut prompting) = (Instant::now(), Prompting::default());
    let one = waiting(&[1]);
    let called = PromptEvent::Tick { called: true };
    let effects = prompting.handle(called, &facts(&one, FULL_SCREEN, now));
    assert!(effects.contains(&Effect::FitTerminal { smaller: true }));
    let effects = prompting.handle(PromptEvent::Typed(b"q"), &facts(&one, FULL_SCREEN, now));
    assert!(effects.contains(&Effect::HoldOutput(false)));
    assert_eq!(prompting.smaller, Some(now));
    prompting.drew(now);
    let tick = PromptEvent::Tick { called: false };
    prompting.handle(tick, &facts(&one, FULL_SCREEN, now + A_MOMENT));
    assert_eq!(prompting.smaller, None);
}

#[test]
fn a_denial_of_an_approved_request_is_noted_on_the_open_prompt() {
    let now = Instant::now();
    let two = waiting(&[1, 2]);
    let mut prompting = opened(&two, now);
    prompting.note_denial(&LeaseReason::PathReplaced.into());
    let effects = prompting.handle(PromptEvent::Resized, &facts(&two, Before::default(), now));
    assert!(shown(&effects).contains("was not opened"), "{effects:?}");
}

#[test]
fn an_approval_becomes_a_rule_only_if_it_had_an_effect() {
    let mut prompting = Prompting::default();
    let granted = RequestOutcome::Granted(ironcage_model::GrantedLease::ForScope {
        term: Term::UntilRevoked,
        uses: None,
    });
    let denied = RequestOutcome::denied(LeaseReason::PathReplaced);
    let always = |prompting: &mut Prompting| prompting.permanent = Some((1, waiting(&[1, 2])));
    always(&mut prompting);
    assert!(prompting.take_permanent(7, &granted).is_empty(), "another");
    assert_eq!(prompting.take_permanent(1, &granted).len(), 2);
    assert!(prompting.take_permanent(1, &granted).is_empty(), "once");
    always(&mut prompting);
    assert!(prompting.take_permanent(1, &denied).is_empty());
    assert!(prompting.take_permanent(1, &granted).is_empty());
}
