//! A process beside PID 1 that makes a part of the cage.

use crate::StartError;
use ironcage_model::Layer;
use ironcage_sys::rustix::process::{WaitId, WaitIdOptions, waitid};
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
        let failed = |errno| StartError::Layer {
            layer: self.layer,
            action: self.action.into(),
            errno,
            code: ironcage_model::StartCode::LayerFailed,
        };
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)
            .map_err(|error| failed(error.raw_os_error()))?;
        match status.and_then(|status| status.exit_status()) {
            Some(0) => Ok(()),
            Some(errno) => Err(failed(errno)),
            None => Err(StartError::Died),
        }
    }
}
