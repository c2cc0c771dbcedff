//! Programs that the engine wants to run at points of a container's life.

use crate::error::{Error, IoContext as _};
use crate::spec::Hook;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(5);

/// Runs hooks one after the other, each with the state on its standard input. The first that fails
/// ends it.
pub(crate) fn run(kind: &str, hooks: &[Hook], state: &str) -> Result<(), Error> {
    hooks.iter().try_for_each(|hook| run_one(kind, hook, state))
}

fn run_one(kind: &str, hook: &Hook, state: &str) -> Result<(), Error> {
    let action = || format!("run the {kind} hook {}", hook.path.display());
    let mut command = Command::new(&hook.path);
    let mut args = hook.args.iter();
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    let pairs = hook.env.iter().filter_map(|pair| pair.split_once('='));
    let mut child = command
        .args(args)
        .env_clear()
        .envs(pairs)
        .stdin(Stdio::piped())
        .spawn()
        .doing(action)?;
    if let Some(mut input) = child.stdin.take() {
        // One that does not read it may have ended already.
        let _ = input.write_all(state.as_bytes());
    }
    let until = hook
        .timeout
        .filter(|seconds| *seconds > 0)
        .map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
    let status = loop {
        if until.is_none() {
            break child.wait().doing(action)?;
        }
        if let Some(status) = child.try_wait().doing(action)? {
            break status;
        }
        if until.is_some_and(|until| Instant::now() > until) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::refused(action(), "it did not end in its time"));
        }
        std::thread::sleep(PAUSE);
    };
    match status.success() {
        true => Ok(()),
        false => Err(Error::refused(action(), status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(text: &str, timeout: Option<u32>) -> Hook {
        Hook {
            path: "/bin/sh".into(),
            args: ["sh", "-c", text].map(str::to_owned).to_vec(),
            env: vec!["NAME=value".into()],
            timeout,
        }
    }

    #[test]
    fn a_hook_gets_state_and_environment_and_its_failure_counts() {
        let reads = hook(
            r#"read state; [ "$state" = word ] && [ "$NAME" = value ]"#,
            None,
        );
        run("test", &[reads], "word\n").unwrap();
        assert!(run("test", &[hook("exit 3", None)], "").is_err());
        let slow = run("test", &[hook("exec sleep 60", Some(1))], "").unwrap_err();
        assert!(slow.to_string().contains("in its time"));
    }
}
