//! The nodes that a plan's operations need, made before anything is mounted.

use super::{View, doing, unbound};
use crate::authorities;
use crate::error::{LayerError, shown};
use crate::hiding::{HIDDEN_DIRECTORY, HIDDEN_FILE};
use crate::overlay::{Layers, Place, UPPER, WORK, as_agent};
use ironcage_plan::{Item, NodeKind, ViewOp};
use std::path::Path;

impl View<'_> {
    /// Makes the nodes that the operations need.
    pub fn lay_out(&self, ops: &[Item<ViewOp>]) -> Result<(), LayerError> {
        if !self.laid_out.replace(true) {
            self.directory(Path::new(HIDDEN_DIRECTORY), 0o000)?;
            self.file(Path::new(HIDDEN_FILE), b"", 0o000)?;
        }
        for item in ops {
            match &item.what {
                ViewOp::Directory {
                    target,
                    mode,
                    agents,
                } => {
                    self.directory(target, *mode)?;
                    if *agents {
                        self.give_to_agent(target)?;
                    }
                }
                ViewOp::Symlink { target, to } => self.link(target, to)?,
                // With the agent's ids, below; where it lies is made here.
                ViewOp::File { target, .. } => {
                    if let Some(above) = target.parent() {
                        self.directory(above, 0o755)?;
                    }
                }
                ViewOp::Authorities {
                    target,
                    bundles,
                    java,
                } => {
                    let content = authorities::content(bundles, self.setting.authority, *java);
                    let content = doing(content, || {
                        format!("gather authorities for {}", shown(target))
                    })?;
                    self.file(target, &content, 0o444)?;
                }
                ViewOp::Bind { target, kind, .. } => match kind {
                    NodeKind::Directory => self.directory(target, 0o755)?,
                    NodeKind::File => self.empty_file(target)?,
                },
                ViewOp::Overlay {
                    lower,
                    target,
                    owner,
                    memory,
                    ..
                } => {
                    self.directory(target, 0o755)?;
                    if let Some(place) = memory {
                        self.make_memory(lower, Path::new(place), *owner)?;
                    }
                }
                ViewOp::Supervisor { target, .. } => return Err(unbound(target)),
                ViewOp::Proc => self.directory(Path::new("/proc"), 0o555)?,
                ViewOp::Cgroup => self.directory(Path::new("/sys/fs/cgroup"), 0o755)?,
                ViewOp::Terminals => self.directory(Path::new("/dev/pts"), 0o755)?,
                ViewOp::Ephemeral { .. }
                | ViewOp::Cover { .. }
                | ViewOp::Pin { .. }
                | ViewOp::Hide { .. }
                | ViewOp::MaskProc { .. }
                | ViewOp::ReadOnlyProc { .. }
                | ViewOp::Seal => {}
            }
        }
        match self.gives_to_agent {
            true => as_agent(self.setting.agent, || self.lay_out_as_agent(ops))?,
            false => self.lay_out_as_agent(ops)?,
        }
        self.close_written()
    }

    /// What is made with the agent's ids: files, because some programs, ssh among them, refuse
    /// settings of somebody else's; and overlays, which work on their layers with the ids of who
    /// made them.
    fn lay_out_as_agent(&self, ops: &[Item<ViewOp>]) -> Result<(), LayerError> {
        for item in ops
            .iter()
            .filter(|item| self.taken_over(&item.what).is_none())
        {
            match &item.what {
                ViewOp::File {
                    target,
                    content,
                    mode,
                } => self.file(target, content.as_bytes(), *mode)?,
                ViewOp::Overlay {
                    lower,
                    target,
                    upper,
                    work,
                    memory,
                    owner,
                    of: _,
                    locked: _,
                } => {
                    let handle = match memory {
                        None => self.overlay(Layers { lower, upper, work }, (*owner, Place::Host)),
                        Some(place) => {
                            let place = Path::new(place);
                            let (upper, work) = (&place.join(UPPER), &place.join(WORK));
                            self.overlay(Layers { lower, upper, work }, (*owner, Place::Memory))
                        }
                    }?;
                    self.made.borrow_mut().push((target.clone(), handle));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
