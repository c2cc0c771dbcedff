//! Input that a server wants before it completes a request (`input_required`), and the state that comes back with it.
//!
//! The client sends the state again with its next request, so between the two it is in the hands of the agent. The
//! gateway signs it for one request: a state that was changed, or that belongs to another call, does not reach the server.

use crate::error::McpError;
use crate::settings::{hex, random};
use ironcage_model::ToolReason;
use rmcp::model::{RequestStateCodec, SealOptions};
use std::time::Duration;

/// How long a client may take to get the input, as long as a call waits for approval.
const LASTS: Duration = Duration::from_secs(30 * 60);

/// The key of this gateway. A state does not outlive it.
pub(crate) struct StateSigner(RequestStateCodec);

impl StateSigner {
    pub(crate) fn new() -> Result<Self, McpError> {
        let mut key = [0; 32];
        random(&mut key)?;
        let codec = RequestStateCodec::try_new(key);
        let codec = codec.map_err(|error| McpError::Random(std::io::Error::other(error)))?;
        Ok(StateSigner(codec))
    }

    /// The state of a server, signed for the request that it belongs to.
    pub(super) fn sign(&self, request: &RequestKey, state: &str) -> String {
        let options = SealOptions::new().associated_data(request.0.as_bytes());
        (self.0).seal_with(state.as_bytes(), &options.ttl(LASTS))
    }

    /// The state as the server gave it, for the same request.
    pub(super) fn check(&self, request: &RequestKey, signed: &str) -> Option<String> {
        let opened = self.0.open_with(signed, request.0.as_bytes()).ok()?;
        String::from_utf8(opened).ok()
    }
}

/// What makes two requests the same one: the server, the method, the name and the arguments.
pub(super) struct RequestKey(String);

impl RequestKey {
    /// `arguments` is the hash that the log has.
    pub(super) fn new(server: &str, method: &str, name: &str, arguments: &str) -> Self {
        let all = serde_json::json!([server, method, name, arguments]);
        RequestKey(hex(all.to_string().as_bytes()))
    }
}

/// Why a state is refused.
pub(super) fn state_refused(name: &str) -> ToolReason {
    ToolReason::Argument {
        tool: ironcage_tools::one_line(name),
        argument: "requestState".to_owned(),
        part: "signature".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_holds_for_its_request_and_its_gateway_alone() {
        let (own, other) = (StateSigner::new().unwrap(), StateSigner::new().unwrap());
        let key = |tool: &str, arguments: &str| RequestKey::new("s", "tools/call", tool, arguments);
        let signed = own.sign(&key("pay", "a"), "step 2: {\"to\": 1}");
        let state = own.check(&key("pay", "a"), &signed);
        assert_eq!(state.as_deref(), Some("step 2: {\"to\": 1}"));
        assert_eq!(own.check(&key("pay", "b"), &signed), None);
        assert_eq!(own.check(&key("read", "a"), &signed), None);
        assert_eq!(other.check(&key("pay", "a"), &signed), None);
        assert_eq!(own.check(&key("pay", "a"), &format!("{signed}x")), None);
        assert_eq!(
            own.check(&key("pay", "a"), "step 3"),
            None,
            "never signed by anybody"
        );
    }
}
