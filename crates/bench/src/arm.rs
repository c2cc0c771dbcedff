//! One of the things that a bench compares: started on demand, timed from spawn to exit.

use crate::resident::Resident;
use crate::scratch::{Complaints, Scratch};
use crate::{ArmError, BenchError};
use ironcage_sys::bench::{Launch, Program};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// Something that can be started and timed again and again.
#[derive(Debug)]
pub(crate) enum Arm {
    /// A program that the bench starts itself.
    Spawned {
        launch: Launch,
        complaints: Complaints,
    },
    /// A process that makes the starts and times them.
    Resident(Resident),
}

impl Arm {
    /// A program with its arguments, in the directory, with the scratch's environment.
    pub(crate) fn spawned(
        name: &str,
        program: &Path,
        arguments: &[OsString],
        directory: &Path,
        scratch: &Scratch,
    ) -> Result<Arm, BenchError> {
        let complaints = scratch.complaints(name)?;
        let spawn_error = |source| BenchError::Spawn {
            program: name.to_owned(),
            source,
        };
        let program =
            Program::new(program, arguments, scratch.environment()).map_err(spawn_error)?;
        let stderr = complaints.descriptor()?;
        let launch = Launch::new(program, directory, stderr).map_err(spawn_error)?;
        Ok(Arm::Spawned { launch, complaints })
    }

    /// One start; the inner error is why it failed.
    pub(crate) fn measure(&mut self) -> Result<Result<Duration, ArmError>, BenchError> {
        match self {
            Arm::Resident(resident) => resident.measure(),
            Arm::Spawned { launch, complaints } => Ok(match launch.run() {
                Ok(finished) if finished.status.success() => Ok(finished.elapsed),
                Ok(finished) => Err(ArmError::Status {
                    status: finished.status.to_string(),
                    complaints: complaints.take(),
                }),
                Err(error) => Err(ArmError::system("start it")(error)),
            }),
        }
    }
}
