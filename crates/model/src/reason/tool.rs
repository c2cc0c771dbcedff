//! Why a tool call was refused.

reasons! {
    /// Why a tool call, or another request to an MCP server, was refused.
    ToolReason

    /// The policy does not list the tool.
    NotListed { tool: String }
        "tool-not-listed"
        "the policy does not list the tool {tool}"
        => "Use another tool, or add the name to `allow` under `[mcp.SERVER]` or `[tools]`.";
    /// The policy denies the tool.
    Denied { tool: String }
        "tool-denied"
        "the policy denies the tool {tool}"
        => "Use another tool. `ironcage why` names the rule.";
    /// An argument is not what the policy requires.
    Argument { tool: String, argument: String, part: String }
        "tool-argument"
        "the argument {argument} of {tool} does not meet `{part}`"
        => "Call the tool with another value. `ironcage why` names the rule.";
    /// The tool has rules for its arguments, and none of them names this argument.
    ArgumentNotListed { tool: String, argument: String }
        "tool-argument-not-listed"
        "the policy does not list the argument {argument} of {tool}"
        => "Call the tool without the argument, or add it under `[mcp.SERVER.arguments.TOOL]`.";
    /// A required argument is missing.
    ArgumentMissing { tool: String, argument: String }
        "tool-argument-missing"
        "the policy requires the argument {argument} of {tool}"
        => "Call the tool with the argument.";
    /// The arguments do not fit the schema that the server announced.
    ArgumentSchema { tool: String, error: String }
        "tool-argument-schema"
        "the arguments of {tool} do not fit the schema of the tool: {error}"
        => "Call the tool with arguments that fit its input schema.";
    /// The message can be read in two ways: a key twice, or invalid JSON.
    MessageAmbiguous { error: String }
        "tool-message-ambiguous"
        "the message can be read in two ways: {error}"
        => "Send each key once, in valid JSON.";
    /// The name has characters that look like others.
    NameAmbiguous { tool: String }
        "tool-name-ambiguous"
        "the name {tool} has characters other than letters, digits, `_`, `-`, `.` and `/`"
        => "Call the tool by the name in the list of tools.";
    /// The policy requires a person's approval of the call.
    ApprovalRequired { tool: String }
        "tool-approval-required"
        "the policy requires a person's approval for the tool {tool}"
        => "The user answers with `ironcage mcp approve` or `ironcage mcp deny`; then call again with the same arguments.";
    /// Private data met untrusted content, and data could leave through the tool.
    FlowAsks { tool: String, private: String, untrusted: String }
        "tool-flow-approval-required"
        "data could leave through {tool}: {private} gave private data, and {untrusted} gave untrusted content"
        => "The user answers with `ironcage mcp approve` or `ironcage mcp deny`; then call again with the same arguments.";
    /// The ceiling of the server's cage does not grant what the call needs.
    LeaseDenied { tool: String, resource: String, error: String }
        "tool-lease-denied"
        "the call of {tool} needs {resource}, which the cage of its server is not granted: {error}"
        => "Call the tool with another value, or add the resource to `[ceiling.auto]` or `[ceiling.ask]` in the policy of the server's cage.";
    /// What was opened for a call was not proven closed after it.
    LeaseNotClosed { tool: String, resource: String, error: String }
        "tool-lease-not-closed"
        "{resource}, opened for the call of {tool}, is not proven closed: {error}"
        => "The result is withheld. Restart the gateway; `ironcage why` explains what the cage of the server still held.";
    /// A person denied the call.
    DeniedByOperator { tool: String }
        "tool-denied-by-operator"
        "a person denied this call of {tool}"
        => "Do without it.";
    /// The tool is new, or it changed since a person approved it.
    Quarantined { tool: String, why: String }
        "tool-quarantined"
        "the tool {tool} waits for a person's approval: {why}"
        => "The user reviews it with `ironcage mcp pins` and `ironcage mcp approve SERVER`.";
    /// No server has the tool.
    Unknown { tool: String }
        "tool-unknown"
        "no server has a tool {tool}"
        => "Call a tool from the list of tools.";
    /// The server does not run or did not answer.
    ServerUnavailable { server: String, error: String }
        "tool-server-unavailable"
        "the server {server} is not available: {error}"
        => "Read the error; `ironcage why` explains what the cage of the server was denied.";
    /// The result is larger than the policy allows.
    ResultTooLarge { tool: String, limit: u64 }
        "tool-result-too-large"
        "the result of {tool} is larger than {limit} bytes"
        => "Ask for less, or raise `largest-result` under `[mcp.SERVER]`.";
    /// The policy does not allow the resource.
    ResourceNotAllowed { server: String, uri: String }
        "tool-resource-not-allowed"
        "the policy does not allow the resource {uri} of {server}"
        => "Add it to `resources` under `[mcp.SERVER]`.";
    /// The policy does not allow the prompt.
    PromptNotAllowed { server: String, prompt: String }
        "tool-prompt-not-allowed"
        "the policy does not allow the prompt {prompt} of {server}"
        => "Add it to `prompts` under `[mcp.SERVER]`.";
    /// The server asked for something of the client that the policy does not allow.
    RequestNotAllowed { server: String, method: String }
        "tool-request-not-allowed"
        "the policy does not allow {method} to the server {server}"
        => "Set `sampling`, `elicitation` or `roots` under `[mcp.SERVER]`.";
}
