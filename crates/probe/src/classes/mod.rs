//! One file per class of probes: plain values, and the functions that run inside.

mod applied;
pub(crate) mod committed;
mod fd;
mod fs;
mod fs_mounts;
mod hello;
mod ip;
mod ka;
mod ki;
pub(crate) mod le;
mod le_child;
mod le_requests;
mod lf;
mod ne;
mod ne_crowd;
mod ne_proxy;
mod ne_upstream;
pub(crate) mod planted;
mod pr;
mod ps;
mod ps_later;
pub(crate) mod rs;
mod se;
mod secrets_in_answers;
pub(crate) mod su;
pub(crate) mod su_control;
pub(crate) mod sy;
pub(crate) mod to;
mod tt;

use crate::probe::Probe;

/// Every class's probes, in the order of the report.
pub(crate) const ALL: &[&[Probe]] = &[
    fs::PROBES,
    fs_mounts::PROBES,
    planted::FILES,
    fd::PROBES,
    pr::PROBES,
    ip::PROBES,
    ne::PROBES,
    ne_crowd::PROBES,
    ne_proxy::PROBES,
    ne_upstream::PROBES,
    sy::PROBES,
    ki::PROBES,
    se::PROBES,
    tt::PROBES,
    ps::PROBES,
    ps_later::PROBES,
    planted::PROGRAMS,
    applied::PROBES,
    committed::PROBES,
    rs::PROBES,
    lf::PROBES,
    su::PROBES,
    su_control::PROBES,
    le::PROBES,
    le_requests::PROBES,
    le_child::PROBES,
    secrets_in_answers::PROBES,
    ka::PROBES,
    to::PROBES,
];

pub(crate) use crate::inside::{Attempts, Inside, Observation};
pub(crate) use crate::oracle::{Evidence, Oracle};
pub(crate) use crate::probe::{Class, Control, Kind, Setup, Severity};
pub(crate) use crate::stage::{Canary, Channel, Stage};
