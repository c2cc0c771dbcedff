//! The part without a process: which effects follow from which events.

use super::*;
use libc::ENOENT;

const CLIENT: u64 = 7;

fn start(part: &mut Execs, detached: bool, now: Instant) -> u32 {
    let number = part.next_number();
    let event = ExecEvent::Started {
        number,
        command: vec!["sh".into()],
        client: CLIENT,
        detached,
    };
    let effects = part.handle(event, now);
    assert!(matches!(
        &effects[..],
        [Effect::Audit(EventKind::Exec { .. })]
    ));
    number
}

#[test]
fn an_end_is_logged_before_it_is_told() {
    let now = Instant::now();
    let mut part = Execs::of_cage();
    let number = start(&mut part, false, now);
    let status = 3 << 8;
    let later = now + Duration::from_millis(5);
    let effects = part.handle(ExecEvent::Exited { number, status }, later);
    let ending = Ending::Exited { code: 3 };
    let logged = EventKind::ExecExit {
        number,
        ending: ending.clone(),
        milliseconds: 5,
    };
    let told = Effect::Reply {
        client: CLIENT,
        reply: Reply::ExecEnded(ending),
    };
    assert_eq!(effects, [Effect::Audit(logged), told]);
    assert_eq!(part.count(), 0);
}

#[test]
fn numbers_are_not_used_twice() {
    let now = Instant::now();
    let mut part = Execs::of_cage();
    let first = start(&mut part, false, now);
    let drawn = part.draw_number();
    let last = start(&mut part, false, now);
    assert!(first < drawn && drawn < last);
}

#[test]
fn a_detached_command_is_told_to_run_unless_it_could_not_be_executed() {
    let now = Instant::now();
    let mut part = Execs::of_cage();
    let (runs, fails) = (start(&mut part, true, now), start(&mut part, true, now));
    let attached = start(&mut part, false, now);
    let effects = part.handle(ExecEvent::Executed(runs), now);
    assert!(matches!(
        &effects[..],
        [Effect::Reply {
            client: CLIENT,
            reply: Reply::Executed
        }]
    ));
    let errno = ENOENT;
    let event = ExecEvent::NotExecuted {
        number: fails,
        errno,
    };
    part.handle(event, now);
    assert!(part.handle(ExecEvent::Executed(fails), now).is_empty());
    assert!(part.handle(ExecEvent::Executed(attached), now).is_empty());
    let exited = ExecEvent::Exited {
        number: fails,
        status: 0,
    };
    let effects = part.handle(exited, now);
    assert!(matches!(
        effects.last(),
        Some(Effect::Reply {
            reply: Reply::ExecEnded(Ending::NotExecuted { errno: ENOENT }),
            ..
        })
    ));
}

#[test]
fn a_command_whose_client_is_gone_is_hung_up_then_killed_and_a_detached_one_is_not() {
    let now = Instant::now();
    let mut part = Execs::of_cage();
    let (attached, detached) = (start(&mut part, false, now), start(&mut part, true, now));
    assert!(part.handle(ExecEvent::ClientGone(detached), now).is_empty());
    let signal = |signal| Effect::SignalExec {
        number: attached,
        signal,
    };
    let effects = part.handle(ExecEvent::ClientGone(attached), now);
    assert_eq!(effects, [signal(SIGHUP), signal(SIGCONT)]);
    assert!(part.handle(ExecEvent::Tick, now).is_empty());
    assert_eq!(part.next(), Some(now + HANGUP));
    let effects = part.handle(ExecEvent::Tick, now + HANGUP);
    assert_eq!(effects, [signal(SIGKILL)]);
    assert!(part.handle(ExecEvent::Tick, now + HANGUP * 2).is_empty());
    // Nobody is told of its end; it is logged.
    let event = ExecEvent::CageEnded(Ending::Signalled { signal: SIGKILL });
    let effects = part.handle(event, now);
    assert_eq!(effects.len(), 2);
    assert!(
        effects
            .iter()
            .all(|effect| matches!(effect, Effect::Audit(_)))
    );
}

#[test]
fn the_end_of_a_scopes_command_is_told_with_the_scopes() {
    let now = Instant::now();
    let mut part = Execs::of_scope(4, "digest".into());
    let number = start(&mut part, false, now);
    assert_eq!(number, 4);
    let effects = part.handle(ExecEvent::Exited { number, status: 0 }, now);
    let ending = Ending::Exited { code: 0 };
    assert_eq!(effects, [Effect::ScopeCommandEnded(ending.clone())]);
    let effects = part.handle(ExecEvent::CageEnded(ending), now);
    assert_eq!(effects.len(), 2);
}
