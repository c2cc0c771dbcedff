//! Runs with a lease: it is opened when the probe asks, and ended while the probe holds it.

use super::Runner;
use super::launch::{Mode, RunError, resident_mib};
use crate::classes::le::{CONTENT, PATIENCE};
use crate::oracle::Evidence;
use crate::probe::Setup;
use crate::stage::{Canary, making};
use ironcage_sys::rustix::fs::{self as files, OFlags, openat};
use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The name of the cage that has a lease.
pub(crate) const NAME: &str = "leased";

impl Runner {
    /// One run with a lease, or beside a scope that has one.
    pub(super) fn leased(
        &self,
        setup: Setup,
        line: &[OsString],
        mode: Mode,
        evidence: &mut Evidence,
    ) -> Result<(), RunError> {
        let leased = self.stage.params.leased.clone();
        // By descriptor: uncaged, a probe may move the directory away.
        let place = fs::File::open(&leased).map_err(making("the leased directory"))?;
        let mut running = self.begin(line, mode)?;
        self.hear("wants", &mut running.child);
        let path = leased.to_string_lossy().into_owned();
        let mut scope = match setup {
            Setup::Scoped => {
                self.put_secret(&place)?;
                let scope = self.start_scope(mode, &path)?;
                self.hear("held", &mut running.child);
                Some(scope)
            }
            _ if mode == Mode::Caged => {
                let words = ["grant", NAME, "--write", &path, "--reason", "a probe"];
                let granted = self.own_command(&words)?;
                evidence.errors.extend(granted.stderr);
                None
            }
            _ => None,
        };
        self.say("given")?;
        evidence.launcher_mib = self.hear("holds", &mut running.child);
        if mode == Mode::Caged {
            evidence.permitted = Some(leased.join("used").exists());
        }
        match (&mut scope, mode) {
            (Some(scope), _) => {
                self.say("over")?;
                let mut ignored = Evidence::default();
                self.finish(scope, self.patience(PATIENCE), &mut ignored);
            }
            (None, Mode::Caged) => {
                let revoked = self.own_command(&["revoke", NAME, "--all"])?;
                evidence.errors.extend(revoked.stderr);
            }
            (None, _) => {}
        }
        // From here on whatever happens to these is beyond the lease.
        put(&place, "file", CONTENT)?;
        self.put_secret(&place)?;
        self.say("ended")?;
        running.end(self, evidence);
        Ok(())
    }

    fn put_secret(&self, place: &fs::File) -> Result<(), RunError> {
        let secret = format!("{}\n", self.stage.nonces.of(Canary::Leased));
        put(place, "late", secret.as_bytes())
    }

    /// A process with a lease of its own, beside the cage.
    fn start_scope(&self, mode: Mode, leased: &str) -> Result<Child, RunError> {
        let layout = &self.stage.layout;
        let mut words: Vec<OsString> = Vec::new();
        if mode == Mode::Caged {
            words.push(self.launcher.clone().into());
            words.extend(["exec", "--lease"].map(OsString::from));
            words.extend([format!("write={leased}").into(), NAME.into(), "--".into()]);
        }
        words.push(layout.program.clone().into());
        words.extend(["probe", "role", "scope"].map(OsString::from));
        words.push(layout.params.clone().into());
        let program = words.first().cloned().unwrap_or_default();
        Command::new(&program)
            .args(&words[1..])
            .env_clear()
            .envs(self.stage.environment())
            .current_dir(&self.stage.params.workspace)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|source| RunError::Start {
                program: program.to_string_lossy().into_owned(),
                source,
            })
    }

    fn say(&self, word: &str) -> Result<(), RunError> {
        let said = fs::write(self.stage.layout.suite.join(word), b"");
        Ok(said.map_err(making("a word for a probe"))?)
    }

    /// Waits for a word of the probe's, or its end; what the launcher took of memory meanwhile.
    fn hear(&self, word: &str, child: &mut Child) -> u64 {
        let path = self.stage.layout.suite.join(word);
        let started = Instant::now();
        let mut most = 0;
        while !path.exists()
            && started.elapsed() < self.patience(PATIENCE)
            && !matches!(child.try_wait(), Ok(Some(_)))
        {
            most = most.max(resident_mib(child.id()));
            std::thread::sleep(Duration::from_millis(2));
        }
        most
    }
}

/// Writes a file of the leased directory.
fn put(place: &fs::File, name: &str, content: &[u8]) -> Result<(), RunError> {
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = files::Mode::from_raw_mode(0o644);
    let opened = openat(place, name, flags, mode).map_err(std::io::Error::from);
    let written = opened.and_then(|file| fs::File::from(file).write_all(content));
    Ok(written.map_err(making(format!("{name} of the leased directory")))?)
}
