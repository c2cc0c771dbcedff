//! Why the egress proxy does not let a connection or a request through, or got no answer to it.

reasons! {
    /// Why a connection or a request did not go through.
    NetworkReason

    /// A `deny` rule names the destination. The audit log has the rule.
    DeniedByRule
        "network-denied-by-rule"
        "a rule denies this destination"
        => "Do without it, or remove the rule from `network.deny`.";
    /// No rule allows the host.
    HostNotAllowed
        "network-host-not-allowed"
        "no rule allows this host"
        => "`--allow-host NAME`, or `ironcage net allow` while the cage runs. An agent asks: `/.ironcage/bin/ironcage ask --host NAME`.";
    /// Rules allow the host, but not this port.
    PortNotAllowed
        "network-port-not-allowed"
        "no rule allows this port of the host"
        => "`--allow-host NAME:PORT`.";
    /// No rule allows this loopback port of the host (`host.ironcage`).
    LoopbackPortNotAllowed
        "network-loopback-port-not-allowed"
        "no rule allows this loopback port"
        => "`--allow-host-port PORT`.";
    /// No rule allows the address.
    AddressNotAllowed
        "network-address-not-allowed"
        "no rule allows this address"
        => "Connect by name, or allow the address: `--allow-host ADDRESS:PORT`.";
    /// The address is private, local or otherwise special, and no rule names it.
    AddressSpecial { kind: String }
        "network-address-special"
        "the address is {kind}, and no rule names it"
        => "Name the address itself: `--allow-host ADDRESS:PORT`.";
    /// The name resolves to a private, local or otherwise special address that no rule names.
    NameLeadsTo { address: String, kind: String }
        "network-name-leads-to-special"
        "the name leads to {address}, which is {kind}, and no rule names that address"
        => "If that is intended, name the address: `--allow-host ADDRESS:PORT`.";
    /// Request rules cover every host, and a connection to an address names none.
    AddressNotAName
        "network-request-rules-need-a-name"
        "request rules cover every host, and a connection to an address names no host"
        => "Connect by name.";
    /// The address belongs to a name that has its own rules.
    AddressShared { name: String }
        "network-address-shared"
        "the address is one of {name}, which has its own rules"
        => "Connect by that name, under its rules.";
    /// It cannot be determined whether the address belongs to a name that has rules.
    AddressSharingUnknown { name: String }
        "network-address-sharing-unknown"
        "cannot determine whether the address is one of {name}, which has its own rules: no resolver of the host answered"
        => "Check the host's DNS, or connect by name.";
    /// The address is in the range that the proxy assigns to names, and stands for none.
    AddressUnassigned
        "network-address-unassigned"
        "the address stands for no name"
        => "Resolve the name again and connect to the address that it has now.";
    /// The name has no address in the host's DNS.
    NameNotFound
        "network-name-not-found"
        "the host's DNS has no address for this name"
        => "Check the name, or set its address: `--resolve NAME=ADDRESS`.";
    /// No DNS resolver of the host answered.
    NoResolver
        "network-no-resolver"
        "no resolver of the host answered"
        => "Check the host's DNS.";
    /// The destination is allowed, and connecting to it failed.
    CannotConnect { error: String }
        "network-cannot-connect"
        "cannot connect: {error}"
        => "Check that the server is up and reachable from the host.";
    /// The upstream proxy of your network does not answer, or its answer is not HTTP.
    UpstreamUnreachable { error: String }
        "network-upstream-unreachable"
        "cannot connect to the upstream proxy: {error}"
        => "Check the proxy in `HTTPS_PROXY` or `[network.upstream]`; `--upstream-proxy off` connects without it.";
    /// The upstream proxy needs other credentials than it got (407).
    UpstreamCredentials
        "network-upstream-credentials"
        "the upstream proxy needs other credentials (407)"
        => "Put user and password into `HTTPS_PROXY` on the host, or set `credentials` under `[network.upstream]`.";
    /// The upstream proxy did not connect to the destination.
    UpstreamRefused { status: u64 }
        "network-upstream-refused"
        "the upstream proxy answered {status}"
        => "Ask who runs the proxy, or list the host in `NO_PROXY` if it is reached without it.";
    /// A connection to the upstream proxy itself, which would go round the rules.
    UpstreamItself
        "network-upstream-itself"
        "this is the upstream proxy, which the egress proxy alone uses"
        => "Connect to the destination itself; the egress proxy uses the upstream proxy where it has to.";
    /// The lease that allowed it has no uses left.
    LeaseUsedUp
        "network-lease-used-up"
        "the lease on it is used up"
        => "Ask for another lease.";
    /// A network limit of the policy is reached.
    LimitReached { amount: String, limit: String }
        "network-limit-reached"
        "more than {amount} (network.limits.{limit})"
        => "Raise the limit: `--network-limit NAME=VALUE`.";
    /// The proxy has no room for another connection.
    TooManyConnections { limit: u64 }
        "network-too-many-connections"
        "more than {limit} connections at once"
        => "Close connections before opening others.";
    /// The cage resolved more names than the proxy can assign addresses to.
    TooManyNames
        "network-too-many-names"
        "too many names"
        => "Start the cage again.";
    /// The connection was closed because a changed rule no longer allows it.
    Closed { because: String }
        "network-closed"
        "closed while it was open: {because}"
        => "`ironcage net rules` lists the rules as they are now.";
    /// Request rules of the host changed while the connection was open.
    RequestRulesChanged
        "network-request-rules-changed"
        "other request rules apply now"
        => "Connect again.";
    /// Another protocol began in a connection that had carried something else.
    ProtocolChanged
        "network-protocol-changed"
        "it became HTTP or TLS after other bytes had gone out"
        => "Use a separate connection for HTTP or TLS.";
    /// Only HTTP requests are allowed to this host.
    NotHttp
        "network-not-http"
        "only HTTP requests are allowed to this host, and this connection is not HTTP"
        => "Use HTTP, or allow the whole host.";
    /// The Unix socket is not in the policy.
    SocketNotAllowed
        "network-socket-not-allowed"
        "no rule allows this socket"
        => "`--socket PATH`.";
    /// The destination is not a name and not an address.
    NotAHost
        "network-not-a-host"
        "expected a host name or an address"
        => "Use a host name or an address.";
    /// Nothing in the cage listens on the published port.
    NobodyListens
        "network-nobody-listens"
        "nothing listens on this port in the cage"
        => "Start the server in the cage first.";
    /// The log has no requests of the connection, and request rules apply to its host.
    RequestsNotRecorded
        "network-requests-not-recorded"
        "the log has no requests of this connection, and request rules apply to its host"
        => "Record a run under the new rules.";

    /// The TLS ClientHello is for another name than the connection.
    TlsOtherName { name: String }
        "tls-other-name"
        "this is TLS for {name}"
        => "Connect to the name that TLS is for.";
    /// The TLS ClientHello names no server.
    TlsNoName
        "tls-no-name"
        "this is TLS without a server name"
        => "Use a client that sends the server name (SNI).";
    /// The TLS ClientHello is for a name that has its own rules.
    TlsNameHasRules { name: String }
        "tls-name-has-rules"
        "this is TLS for {name}, which has its own rules"
        => "Connect by that name, under its rules.";
    /// The client encrypts the server name (ECH), so the rules cannot be checked.
    TlsNameHidden
        "tls-name-hidden"
        "this is TLS that hides its server name (encrypted ClientHello)"
        => "Turn ECH off in the client.";
    /// The first bytes are not a valid TLS ClientHello.
    TlsInvalid { error: String }
        "tls-invalid"
        "invalid TLS: {error}"
        => "Check that the client speaks TLS on this port.";
    /// The TLS ClientHello did not arrive in time.
    TlsTimeout
        "tls-timeout"
        "timed out waiting for the TLS ClientHello"
        => "Try again.";
    /// The client rejected the certificate of the cage's own authority, or its TLS failed.
    TlsClientFailed { error: String }
        "tls-client-failed"
        "TLS between the program and the cage failed: {error}"
        => "Let the program trust the certificate authorities of the system in the cage (SSL_CERT_FILE).";
    /// The server's certificate is signed by an authority that the host does not know.
    TlsUnknownIssuer { error: String }
        "tls-unknown-issuer"
        "cannot trust the server's TLS: {error}"
        => "Set `SSL_CERT_FILE` in the environment of `ironcage run`, or `authorities` under `[network]`, to a file with the server's authority.";
    /// The TLS connection to the server failed.
    TlsServerFailed { error: String }
        "tls-server-failed"
        "cannot trust the server's TLS: {error}"
        => "Check the server's certificate.";

    /// No request rule allows the request.
    RequestNotAllowed { request: String }
        "http-request-not-allowed"
        "no rule allows {request} here"
        => "`--http-allow 'METHOD HOST/PATH'`, or `ironcage net allow --http` while the cage runs.";
    /// A header field could make the server treat it as another request than the rules see.
    RequestOverridden { field: String }
        "http-field-overrides-request"
        "the header field {field} can turn it into a request that the rules do not see"
        => "Send the request without this field.";
    /// A query parameter could make the server use another method than the rules see.
    MethodOverridden { parameter: String }
        "http-parameter-overrides-method"
        "the parameter {parameter} can turn it into a method that the rules do not see"
        => "Send the request without this parameter.";
    /// Servers could read the path in different ways.
    PathAmbiguous { error: String }
        "http-path-ambiguous"
        "{error}"
        => "Send the path without escapes, `.` and `..`.";
    /// The Host field names another host than the connection is for.
    OtherHost { host: String, name: String }
        "http-other-host"
        "the request is for {host}, the connection for {name}"
        => "Send the Host field of the connection's own host.";
    /// The request is not valid HTTP, or is ambiguous.
    RequestInvalid { error: String }
        "http-request-invalid"
        "invalid HTTP request: {error}"
        => "Fix the client.";
    /// The head of the request is too long or has too many fields.
    HeadTooLong { error: String }
        "http-head-too-long"
        "{error}"
        => "Send fewer or shorter header fields.";
    /// The proxy speaks HTTP/1.0, HTTP/1.1 and HTTP/2 only.
    HttpVersion
        "http-version"
        "expected HTTP/1.0 or HTTP/1.1"
        => "Use another version of HTTP.";
    /// CONNECT is not needed: the proxy is transparent.
    HttpConnect
        "http-connect"
        "CONNECT is not needed here: connections are made directly"
        => "Unset the proxy setting of the program.";
    /// The request did not arrive in time.
    RequestTimeout
        "http-request-timeout"
        "the request did not arrive in time"
        => "Send the request without pauses.";
    /// The body of the request did not arrive in time.
    BodyTimeout
        "http-body-timeout"
        "the body of the request did not arrive in time"
        => "Send the body without pauses.";
    /// Too many requests of one connection are in progress.
    TooManyInProgress
        "http-too-many-in-progress"
        "too many requests at once"
        => "Wait for answers before sending more requests.";
    /// The server closed the connection without an answer.
    NoAnswer
        "http-no-answer"
        "the server closed the connection without an answer"
        => "Try again, and check the server.";
    /// The connection broke before the answer was complete.
    ConnectionBroke
        "http-connection-broke"
        "the connection broke"
        => "Try again, and check the server.";
    /// The server's answer is not valid HTTP.
    AnswerInvalid { error: String }
        "http-answer-invalid"
        "the server's answer: {error}"
        => "Check the server.";

    /// The request carries the placeholder of a secret that is for other hosts.
    SecretWrongHost { secret: String }
        "secret-wrong-host"
        "the secret {secret} is not for this host"
        => "If the host is to have it: `--secret NAME@HOST`.";
    /// The request carries a secret in a place that the policy does not allow.
    SecretWrongPlace { secret: String, place: String }
        "secret-wrong-place"
        "the secret {secret} is not for {place}"
        => "Add the place to `in = [...]` of `[network.secrets.NAME]`.";
    /// The request carries a secret where no policy can allow it, such as the path.
    SecretNowhere { secret: String, place: String }
        "secret-nowhere"
        "the secret {secret} is not for {place}"
        => "Send the secret in a header, a query parameter or the body.";
    /// The secret is sent over TLS only.
    SecretTlsOnly { secret: String }
        "secret-tls-only"
        "the secret {secret} goes to this host over TLS only"
        => "Use `https://`.";
    /// The cage publishes the port itself, so the secret would come back to it.
    SecretOwnPort { secret: String, port: u64 }
        "secret-own-port"
        "the secret {secret} does not go to port {port}: this cage publishes that port itself"
        => "Publish another port.";
    /// The login is used only for requests that its agent needs; an account can do more, such as
    /// make API keys.
    LoginWrongRequest { login: String }
        "secret-login-wrong-request"
        "the login of {login} is not used for this request: its token goes only with the requests that the policy lists"
        => "Add the request to `requests` under `[network.logins.NAME]` in a policy that you trust, or do it outside the cage.";
    /// The secret is given by a lease, and none is open.
    SecretNotLeased { secret: String }
        "secret-not-leased"
        "the secret {secret} is not leased to this cage now; grant it with `ironcage grant ID --secret {secret}`"
        => "`ironcage grant ID --secret NAME`.";
    /// The lease on the secret has no uses left.
    SecretUsedUp { secret: String }
        "secret-lease-used-up"
        "the lease on the secret {secret} is used up"
        => "Ask for another lease.";
    /// The token of a login expired and could not be renewed.
    LoginNotRenewed { login: String, error: String }
        "secret-login-not-renewed"
        "the login of {login} cannot be renewed: {error}"
        => "Log in again on the host.";
    /// The answer is encoded so that a secret in it could not be redacted.
    AnswerNotRedactable { what: String }
        "secret-answer-not-redactable"
        "cannot redact secrets in the server's answer: {what}, which the request did not ask for"
        => "Check the server; it ignores what the request accepts.";
    /// The request to an AWS host is not signed with this cage's key.
    AwsNotSigned { error: String }
        "aws-not-signed"
        "requests to this host are signed: {error}"
        => "Let the client sign with the credentials in the cage's environment.";
    /// The signature of the request is not valid.
    AwsSignatureInvalid { error: String }
        "aws-signature-invalid"
        "{error}"
        => "Check the client's clock and that nothing changes the request after signing.";
    /// A signed body must have a known length of at most 8 MiB.
    AwsBodyTooLong
        "aws-body-too-long"
        "a body that is part of the signature or names an action must state its length, at most 8 MiB"
        => "Send the body unsigned, or in parts.";
    /// The request would return credentials that work outside the cage.
    AwsHandsOutCredentials { name: String }
        "aws-hands-out-credentials"
        "{name} hands out credentials, which would work without the cage: it is signed only where the policy names it, credentials = [\"{name}\"] in [network.aws]"
        => "If that is intended, name it in `credentials` of `[network.aws]`.";

    /// The cage was started without a network.
    NoNetwork
        "network-not-started"
        "the cage was started without a network; start it with --network live, or with a rule"
        => "Start the cage with `--network live`.";
    /// The egress proxy of the cage has ended.
    ProxyEnded
        "network-proxy-ended"
        "the egress proxy of this cage has ended"
        => "Start the cage again; `ironcage why` has the cause.";
    /// The process of the egress proxy ended before its cage did.
    ProxyDied
        "network-proxy-died"
        "the process of the egress proxy ended"
        => "Start the cage again. If it happens again, report it.";
    /// The egress proxy did not carry out an order in time.
    ProxyNoReply
        "network-proxy-no-reply"
        "the egress proxy did not answer an order"
        => "Start the cage again.";
    /// The egress proxy listens on the ports of the rules only.
    PortsOfRulesOnly { error: String }
        "network-ports-of-rules-only"
        "{error}"
        => "Use a kernel that can deliver every connection to the proxy; the text says what is missing.";
    /// The egress proxy does not take orders.
    ProxyUnreachable { error: String }
        "network-proxy-unreachable"
        "the egress proxy does not answer: {error}"
        => "Start the cage again.";
    /// As many rules as possible were added to the running cage.
    TooManyRules { limit: u64 }
        "network-too-many-rules"
        "{limit} rules were added to this cage; remove some with `net remove`"
        => "`ironcage net remove`.";
    /// No rule with this number was added to the running cage.
    NoSuchRule { number: u64 }
        "network-no-such-rule"
        "no rule {number} was added with `net allow` or `net deny`"
        => "`ironcage net rules` lists them.";
    /// The egress proxy gave up all other ports when it started.
    PortsFixed { known: String, wanted: String }
        "network-ports-fixed"
        "the egress proxy of this cage reaches only ports {known}, and this rule is about {wanted}; name one of them, or start the cage with --network live"
        => "Start the cage with `--network live`.";
    /// A rule over requests can only allow requests of one host.
    RequestRulesOnlyAllow
        "network-request-rules-only-allow"
        "a request rule can only allow requests to one host"
        => "Deny the whole host instead.";
    /// The programs in the cage do not trust an authority of its own, so TLS cannot be intercepted.
    NoInterception
        "network-no-interception"
        "the programs in this cage trust no authority of its own, by which TLS could be intercepted; start the cage with --network live, or name port 80"
        => "Start the cage with `--network live`.";
    /// As many ports as possible are published.
    TooManyPublished { limit: u64 }
        "network-too-many-published"
        "{limit} ports of this cage are already published"
        => "Unpublish one first.";
    /// No port of the cage is published there.
    NotPublished { port: u64 }
        "network-not-published"
        "no port of this cage is published at {port}"
        => "`ironcage net publish` lists the published ports.";
    /// A request to watch connections came without its socket.
    NoWatchSocket
        "network-no-watch-socket"
        "a request to watch connections needs one socket"
        => "Use `ironcage net -f`.";
    /// The descriptor beside the request is not a socket that listens on the host's loopback.
    NotAListener
        "network-not-a-listener"
        "expected a socket that listens on the host's loopback"
        => "Use `ironcage net publish`.";
}

impl NetworkReason {
    /// Whether the destination is allowed and was not reached: programs get 502 for it, and 403
    /// for everything else that does not go through.
    pub fn is_failure(&self) -> bool {
        matches!(
            self,
            NetworkReason::NameNotFound
                | NetworkReason::NoResolver
                | NetworkReason::CannotConnect { .. }
                | NetworkReason::UpstreamUnreachable { .. }
                | NetworkReason::UpstreamCredentials
                | NetworkReason::UpstreamRefused { .. }
        )
    }
}
