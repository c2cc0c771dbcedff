//! Unambiguous JSON, as the rules for tool calls read it.

pub(crate) use ironcage_tools::json::read;
