//! The beginning of the end of a cage: somebody asks its command to end, or nobody waits for it.

use crate::supervise::Supervision;
use libc::SIGTERM;
use std::time::{Duration, Instant};

impl Supervision<'_> {
    /// Asks the command to end; later it is killed.
    pub(crate) fn begin_stop(&mut self, grace: Duration, now: Instant) {
        // What the user has stopped cannot hear that it is to end.
        let grace = match self.is_frozen() {
            true => Duration::ZERO,
            false => grace,
        };
        let deadline = now.checked_add(grace).unwrap_or(now);
        // Who asks again may only shorten it.
        let deadline = self
            .control
            .stop_deadline()
            .map_or(deadline, |at| at.min(deadline));
        self.control.stop_by(deadline);
        // A cage that is just ending needs no signal any more.
        let _ = match self.plan.sticky {
            true => self.cage.signal_all(SIGTERM),
            false => self.cage.signal(SIGTERM),
        };
        if !self.is_held() {
            let _ = self.cage.resume();
        }
    }

    /// Tells who started the cage in the background that it runs. `false` when they are gone.
    pub(crate) fn announce(&mut self) -> bool {
        let Some(background) = self.background.take() else {
            return true;
        };
        let told = background.announce(self.control.id()).is_ok();
        if !told {
            self.control.stop_by(Instant::now());
            self.cage.kill();
        }
        told
    }
}
