//! The user's terminal: a tmux server of its own, into which a test types and from which it reads.

use crate::{Stage, skip, wait_until};
use std::process::Command;
use std::time::Duration;

/// A tmux server of its own with one window, in which a shell of the stage's user runs.
#[derive(Debug)]
pub struct Screen<'a> {
    stage: &'a Stage,
    socket: String,
}

impl<'a> Screen<'a> {
    /// How long a test waits for something to be drawn.
    pub const PATIENCE: Duration = Duration::from_secs(60);

    /// A shell that waits for its first line, or `None` where there is no tmux, which counts as skipped.
    ///
    /// # Panics
    /// When tmux does not start.
    pub fn open(stage: &'a Stage) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            skip("tmux is not installed");
            return None;
        }
        let screen = Screen {
            stage,
            socket: stage.base().join("tmux").display().to_string(),
        };
        screen.tmux(&["new-session", "-d", "-x", "100", "-y", "30", "sh"]);
        screen.line("PS1='host> '; clear");
        screen.prompt();
        Some(screen)
    }

    /// A command of tmux; what it prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn tmux(&self, arguments: &[&str]) -> String {
        let output = self
            .stage
            .outside("tmux")
            .args(["-S", &self.socket, "-f", "/dev/null"])
            .args(arguments)
            .output()
            .expect("tmux runs");
        assert!(output.status.success(), "tmux {arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Presses keys.
    pub fn keys(&self, keys: &[&str]) {
        let mut arguments = vec!["send-keys"];
        arguments.extend(keys);
        self.tmux(&arguments);
    }

    /// Types a line.
    pub fn line(&self, text: &str) {
        self.keys(&[text, "Enter"]);
    }

    /// Starts a command in a cage.
    pub fn cage(&self, rest: &str) {
        let binary = crate::binary().display();
        self.line(&format!("{binary} run -q {rest}"));
    }

    /// What is on the screen, and what went past.
    pub fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-S", "-200"])
    }

    /// Waits until the host's shell asks for the next command: what is typed before that goes to the cage.
    #[track_caller]
    pub fn prompt(&self) {
        self.asks("host>");
    }

    /// Waits until the text on the screen ends so.
    ///
    /// # Panics
    /// When it does not in time.
    #[track_caller]
    pub fn asks(&self, prompt: &str) {
        let asks = || self.text().trim_end().ends_with(prompt);
        assert!(
            wait_until(Self::PATIENCE, asks),
            "no {prompt}:\n{}",
            self.text()
        );
    }

    /// Waits for a line that begins so. What was typed does not count: it stands behind a prompt.
    ///
    /// # Panics
    /// When it does not come in time.
    #[track_caller]
    pub fn shows(&self, wanted: &str) {
        let begins = |text: &str| text.lines().any(|line| line.starts_with(wanted));
        let shown = wait_until(Self::PATIENCE, || begins(&self.text()));
        assert!(shown, "no {wanted:?} on the screen:\n{}", self.text());
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        let _ = self
            .stage
            .outside("tmux")
            .args(["-S", &self.socket, "kill-server"])
            .output();
    }
}
