//! The user's own caches, readable through the kept ones: overlays whose lower layer is the
//! host's directory. Nothing is ever written to it.
//!
//! They only save downloads, so a cache that cannot be used is a note, and the cage starts
//! without it.

use super::Builder;
use crate::plan::{Access, HiddenBy, Item, KeptPlace, NodeKind, Overlaid, Owner, ViewOp};
use crate::{guarded, persistent_state};
use ironcage_host::NodeType;
use ironcage_policy::caches::{self, HostCache};
use ironcage_policy::{Policy, Sourced};
use std::path::{Component, Path, PathBuf};

/// Why a cage does not see a cache that the user has.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", .path.display())]
struct CacheNotShown {
    path: PathBuf,
    why: NotShown,
}

#[derive(Debug, thiserror::Error)]
enum NotShown {
    #[error("overlaps Ironcage's own directories")]
    Own,
    #[error("{0}")]
    Guarded(String),
    #[error("agents can write to it")]
    AgentsWrite,
    #[error("the policy hides part of it")]
    Hidden,
    #[error("belongs to user {0}")]
    Owner(u32),
    #[error("{0}")]
    NoOverlay(crate::NoOverlay),
}

impl Builder<'_> {
    pub(super) fn host_caches(&mut self, policy: &Policy) {
        if !policy.host_caches.value {
            return;
        }
        let Some(layers) = &self.request.kept.layers else {
            self.made.notes.push(
                "your own caches are not visible: another cage with this profile is running in this workspace"
                    .into(),
            );
            return;
        };
        let layers = layers.clone();
        for name in &policy.caches {
            for host in caches::find(&name.value).map_or(&[][..], |cache| cache.host) {
                match self.readable_cache(policy, host) {
                    Ok(Some((lower, owner))) => {
                        self.host_cache(host, name, (lower, owner), &layers);
                    }
                    Ok(None) => {}
                    Err(why) => self.made.notes.push(format!(
                        "your own {} cache is not visible: {why}",
                        name.value
                    )),
                }
            }
        }
    }

    /// The real directory of a cache and its owner; `None` where the user has none.
    fn readable_cache(
        &self,
        policy: &Policy,
        host: &HostCache,
    ) -> Result<Option<(PathBuf, Owner)>, CacheNotShown> {
        let Ok(real) = self.files.real(&self.place_of(host)) else {
            return Ok(None);
        };
        let Some(node) = self.files.node(&real) else {
            return Ok(None);
        };
        let hidden = |why: NotShown| CacheNotShown {
            path: real.clone(),
            why,
        };
        let overlaps = |other: &Path| other.starts_with(&real) || real.starts_with(other);
        let own = &self.request.own.paths;
        if own.iter().any(|own| overlaps(own)) {
            return Err(hidden(NotShown::Own));
        }
        let known = guarded::known_homes(self.request);
        if let Some(guard) = guarded::why(&known, &real, Access::Read) {
            return Err(hidden(NotShown::Guarded(guard.why)));
        }
        // Below the workspace or a writable path an agent may have put what it likes.
        if overlaps(&self.request.workspace) || self.agents.iter().any(|path| overlaps(path)) {
            return Err(hidden(NotShown::AgentsWrite));
        }
        if policy.hide.iter().any(|hidden| overlaps(&hidden.value)) {
            return Err(hidden(NotShown::Hidden));
        }
        let owner = Owner::one(node.uid, node.gid);
        if node.kind == NodeType::Directory && owner.uid != self.caller.uid {
            return Err(hidden(NotShown::Owner(owner.uid)));
        }
        match self.no_overlay(&real, node.kind, owner) {
            Some(why) => Err(hidden(NotShown::NoOverlay(why))),
            None => Ok(Some((real, owner))),
        }
    }

    /// Where the user has the cache: where the variable says, else where its tool has it.
    fn place_of(&self, host: &HostCache) -> PathBuf {
        let variable = |name: &str| {
            let mut known = self.request.env.iter();
            let value = known.find(|(known, _)| known == name)?;
            let path = PathBuf::from(&value.1);
            let plain =
                |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
            (path.is_absolute() && path.components().all(plain)).then_some(path)
        };
        let default = host.default.trim_start_matches("~/");
        let moved = variable(host.variable).or_else(|| {
            let below = Path::new(default).strip_prefix(".cache").ok()?;
            Some(variable("XDG_CACHE_HOME")?.join(below))
        });
        moved
            .unwrap_or_else(|| self.request.home.join(default))
            .join(host.part)
    }

    fn host_cache(
        &mut self,
        host: &HostCache,
        name: &Sourced<String>,
        (lower, owner): (PathBuf, Owner),
        layers: &Path,
    ) {
        let origin = format!("cache {}: {}", name.value, host.why);
        let target = Path::new(persistent_state::CACHES).join(host.place);
        let place = layers.join(host.place);
        let (upper, work) = (place.join("upper"), place.join("work"));
        let mount_point = self.request.kept.caches.join(host.place);
        for path in [mount_point, upper.clone(), work.clone()] {
            self.made.kept.push(Item {
                what: KeptPlace {
                    path,
                    kind: NodeKind::Directory,
                },
                origin: origin.clone(),
            });
        }
        self.made.writable.push(upper.clone());
        let hidden = host.without.iter().filter_map(|name| {
            let kind = match self.files.node(&lower.join(name))?.kind {
                NodeType::Directory => NodeKind::Directory,
                _ => NodeKind::File,
            };
            let target = target.join(name);
            let by = HiddenBy::Policy;
            Some(ViewOp::Hide { target, kind, by })
        });
        let hidden: Vec<ViewOp> = hidden.collect();
        self.push(
            ViewOp::Overlay {
                locked: false,
                of: Overlaid::Cache,
                lower,
                target,
                upper,
                work,
                memory: None,
                owner: self.map_owners.then_some(owner),
            },
            origin.clone(),
        );
        for op in hidden {
            self.push(op, origin.clone());
        }
    }
}
