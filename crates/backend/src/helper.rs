//! A process beside PID 1 that makes a part of the cage.

use crate::StartError;
use ironcage_model::Layer;
use ironcage_sys::rustix::process::{WaitId, WaitIdOptions, waitid};
use ironcage_sys::spent::close_later;
use std::os::fd::{AsFd as _, OwnedFd};

/// A short-lived process that makes a part of the cage while PID 1 builds the rest. It exits
/// with zero, or with the number of the error that it met.
#[derive(Debug)]
pub struct Helper {
    pub pidfd: OwnedFd,
    /// What it makes a part of.
    pub layer: Layer,
    pub action: &'static str,
}

impl Helper {
    /// Waits until its part is made and handed over.
    pub fn finish(self) -> Result<(), StartError> {
        let (layer, action) = (self.layer, self.action);
        let failed = |errno| StartError::Layer {
            layer,
            action: action.into(),
            errno,
            code: ironcage_model::StartCode::LayerFailed,
        };
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)
            .map_err(|error| failed(error.raw_os_error()))?;
        // Nobody waits for the end of a descriptor of a process that is gone.
        close_later(self.pidfd);
        match status.and_then(|status| status.exit_status()) {
            Some(0) => Ok(()),
            Some(errno) => Err(failed(errno)),
            None => Err(StartError::Died),
        }
    }
}
