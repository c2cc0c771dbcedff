//! Why a key outside the cage did not sign.

reasons! {
    /// Why an ssh-agent or gpg-agent key did not sign for a cage.
    SigningReason

    /// The policy does not give the cage this key.
    KeyNotGiven
        "key-not-given"
        "the policy does not give the cage this key"
        => "`--ssh-key KEY@HOST` to log in with it, `--sign-key ssh:KEY` or `--sign-key gpg:KEY` to sign commits.";
    /// The key may sign commits, but may not log in to any host.
    KeyNotForLogins
        "key-not-for-logins"
        "the policy lets this key sign commits, but not log in"
        => "`--ssh-key KEY@HOST`.";
    /// The key may log in to hosts, but may not sign commits.
    KeyNotForCommits
        "key-not-for-commits"
        "the policy lets this key log in, but not sign commits"
        => "`--sign-key ssh:KEY`.";
    /// The SSH signature is for another namespace than git's.
    KeyOtherNamespace { namespace: String }
        "key-other-namespace"
        "the signature is for the namespace {namespace}, and a cage signs for git only"
        => "Sign it outside the cage.";
    /// The data to sign is neither an SSH login nor an SSH signature.
    KeyPurposeUnknown
        "key-purpose-unknown"
        "the data to sign is neither an SSH login nor a signature for git"
        => "Sign it outside the cage.";
    /// The client did not prove to which server it logs in.
    KeyHostNotProved
        "key-host-not-proved"
        "the client did not prove to which server it logs in"
        => "Use OpenSSH 8.9 or later in the cage, and no other SSH client.";
    /// The server has a host key that belongs to none of the hosts of this key.
    KeyHostNotAllowed { host_key: String }
        "key-host-not-allowed"
        "the server's host key {host_key} belongs to none of the hosts that the policy names for this key"
        => "`--ssh-key KEY@HOST`, with the host in your known_hosts. If the host changed its key, connect outside the cage first.";
    /// The server's signature over the session is wrong.
    KeyHostSignature
        "key-host-signature"
        "the server's signature over the session is invalid"
        => "Check who answers at that address.";
    /// The kind of the server's host key is not supported.
    KeyHostKind { kind: String }
        "key-host-kind"
        "host keys of type {kind} are not supported"
        => "Use an Ed25519, ECDSA (P-256, P-384) or RSA host key of the server.";
    /// The session was bound for a forwarded agent.
    KeyForwarded
        "key-forwarded"
        "the agent is not forwarded to other hosts"
        => "Connect without `ssh -A`.";
    /// The message is not one that a cage may send to an agent.
    KeyRequestNotAllowed { request: String }
        "key-request-not-allowed"
        "a cage cannot send {request} to the agent"
        => "Manage keys outside the cage.";
    /// The message breaks the agent's protocol.
    KeyRequestMalformed
        "key-request-malformed"
        "the message breaks the protocol of the agent"
        => "Use ssh, ssh-keygen or gpg.";
    /// The message is too long.
    KeyRequestTooLong { limit: u64 }
        "key-request-too-long"
        "the message has more than {limit} bytes"
        => "Use ssh, ssh-keygen or gpg.";
    /// The agent outside cannot be reached.
    KeyAgentUnreachable { error: String }
        "key-agent-unreachable"
        "cannot connect to the agent outside: {error}"
        => "Check that the agent still runs: `ssh-add -l`, `gpg-connect-agent /bye`.";
    /// The agent outside did not sign.
    KeyAgentRefused
        "key-agent-refused"
        "the agent outside did not sign"
        => "Check that the agent has the key and is unlocked: `ssh-add -l`, `gpg -K`.";
    /// The policy asks a person for each use of a key.
    KeyConfirm
        "key-confirm"
        "the policy asks you before each use of a key"
        => "Answer with `ironcage request approve` or `ironcage request deny`.";
}
