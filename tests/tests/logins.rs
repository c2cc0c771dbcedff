//! Logins of agents and keys of Amazon's: the cage has placeholders, the egress proxy puts
//! tokens on, has them renewed outside, and signs requests anew.

use ironcage_tests::{Running, Stage, TlsWeb, either};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/vendor_server.py");

fn vendor(stage: &Stage) -> Option<TlsWeb> {
    TlsWeb::of(stage, "api.test", "/usr/bin/python3", SERVER)
}

/// A file of the user's own, in a directory of theirs.
fn users_file(stage: &Stage, path: &str, content: &Value) -> PathBuf {
    let file = stage.home().join(path);
    let directory = file.parent().expect("a directory").display().to_string();
    let script = format!("mkdir -p {directory} && cat > {}", file.display());
    let mut shell = stage.outside("/bin/sh");
    shell.args(["-ec", &format!("{script} <<'END'\n{content}\nEND\n")]);
    Running::start(&mut shell)
        .finish(Duration::from_secs(60))
        .ok();
    file
}

fn policy(stage: &Stage, server: &TlsWeb, agent: &str) -> Vec<String> {
    let policy = stage.aside().join(format!("{agent}.toml"));
    let port = server.port;
    let text = format!(
        "[network]\nallow = [\"api.test:{port}\", \"127.0.0.1:{port}\"]\nresolve = {{ \"api.test\" = \"127.0.0.1\" }}\n\
         [network.logins.{agent}]\nhosts = [\"api.test:{port}\"]\ntoken-url = \"https://api.test:{port}/oauth/token\"\n"
    );
    std::fs::write(&policy, text).expect("a policy");
    vec!["--policy".to_owned(), policy.display().to_string()]
}

fn claude(access: &str, refresh: &str, until: u64) -> Value {
    json!({ "claudeAiOauth": {
        "accessToken": access, "refreshToken": refresh, "expiresAt": until,
        "scopes": ["user:inference"], "subscriptionType": "max",
    }, "other": "stays" })
}

/// Everything that is real, in the cage's words and in those of Ironcage's record.
fn holds_nothing_real(stage: &Stage, said: &str) {
    let mut all = said.to_owned();
    for args in [vec!["net"], vec!["why"], vec!["audit", "show", "last"]] {
        let told = stage.ironcage(args).output().expect("ironcage");
        all.push_str(&String::from_utf8_lossy(&told.stdout));
        all.push_str(&String::from_utf8_lossy(&told.stderr));
    }
    for real in [
        "first-",
        "-token-number-",
        "secret words",
        "real-key",
        "real-token",
    ] {
        assert!(!all.contains(real), "{real}: {all}");
    }
}

fn renewals(server: &TlsWeb) -> usize {
    let log = server.log();
    log.lines()
        .filter(|line| line.contains("\"/oauth/token\", 200"))
        .count()
}

either! {
    fn a_login_of_claude_is_renewed_outside_and_the_cage_has_a_placeholder(stage) {
        let Some(server) = vendor(stage) else { return };
        let port = server.port;
        let own = users_file(stage, ".claude/.credentials.json", &claude("first-access-token", "first-refresh-token", 1_700_000_000_000));
        let script = format!(
            "cat ~/.claude/.credentials.json; echo later > ~/.claude/settings\n\
             t=$(grep -o 'sk-ant-oat01-[a-z0-9-]*' ~/.claude/.credentials.json)\n\
             for n in 1 2; do curl -sS -m 60 -X POST -H \"Authorization: Bearer $t\" https://api.test:{port}/v1/messages; echo; done\n\
             cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; ls -a ~/.claude\n"
        );
        // Where the agent's directory outlives the run, and where it does not.
        let mut flags = policy(stage, &server, "claude");
        flags.extend(["--profile".to_owned(), "coding-agent".to_owned()]);
        let ran = server.sh(stage, &flags, &script);
        let out = ran.stdout();
        assert!(out.contains("\"accessToken\":\"sk-ant-oat01-ironcage-"), "{ran:?}");
        let covered = format!("\"authorization\": \"Bearer {}\"", "*".repeat("access-token-number-1".len()));
        assert_eq!(out.matches(&covered).count(), 2, "{ran:?}");
        holds_nothing_real(stage, &out);
        assert_eq!(renewals(&server), 1, "{}", server.log());
        let stored: Value = serde_json::from_str(&std::fs::read_to_string(&own).expect("the file")).expect("JSON");
        let login = &stored["claudeAiOauth"];
        assert_eq!(login["refreshToken"], "refresh-token-number-1", "{stored}");
        assert_eq!(login["accessToken"], "access-token-number-1", "{stored}");
        assert_eq!((&login["subscriptionType"], &stored["other"]), (&json!("max"), &json!("stays")));
        let beside = std::fs::read_dir(own.parent().expect("a directory")).expect("a directory");
        assert_eq!(beside.count(), 1, "nothing is left beside it");

        // It says that it holds, and the server refuses it: it is renewed for the next request.
        let later = claude("revoked-access-token", "refresh-token-number-1", 4_000_000_000_000);
        users_file(stage, ".claude/.credentials.json", &later);
        let script = format!(
            "t=$(grep -o 'sk-ant-oat01-[a-z0-9-]*' ~/.claude/.credentials.json)\n\
             for n in 1 2; do curl -sS -m 60 -o /dev/null -X POST -w '%{{http_code}} ' -H \"Authorization: Bearer $t\" https://api.test:{port}/v1/messages; done\n"
        );
        let flags = policy(stage, &server, "claude");
        let ran = server.sh(stage, &flags, &script);
        assert_eq!(ran.stdout(), "401 200 ", "{ran:?}");
        assert_eq!(renewals(&server), 2, "{}", server.log());

        // What cannot be renewed is not used, and the file stays as it is.
        let ended = claude("old-access-token", "unknown-refresh-token", 1_700_000_000_000);
        users_file(stage, ".claude/.credentials.json", &ended);
        let script = script.replace("-o /dev/null", "");
        let ran = server.sh(stage, &flags, &script);
        let out = ran.stdout();
        assert_eq!(out.matches("the login of claude cannot be renewed: api.test refused to renew it: status 400 (invalid_grant)").count(), 2, "{ran:?}");
        assert_eq!(out.matches("502 ").count(), 2, "{ran:?}");
        holds_nothing_real(stage, &out);
        let kept: Value = serde_json::from_str(&std::fs::read_to_string(&own).expect("the file")).expect("JSON");
        assert_eq!(kept, ended);

        // Without a login there is no cage.
        std::fs::remove_file(&own).expect("to remove it");
        let ran = server.sh(stage, &flags, "true");
        assert_eq!(ran.code(), 125, "{ran:?}");
        assert!(format!("{ran:?}").contains("log in with `claude` outside the cage first"), "{ran:?}");
    }

    fn a_login_of_codex_brings_its_account_too(stage) {
        let Some(server) = vendor(stage) else { return };
        let port = server.port;
        // {"exp":1700000000}
        let access = "eyJhbGciOiJub25lIn0.eyJleHAiOjE3MDAwMDAwMDB9.signature";
        let own = users_file(stage, ".codex/auth.json", &json!({
            "OPENAI_API_KEY": null,
            "tokens": { "id_token": "id-token-of-before", "access_token": access, "refresh_token": "first-refresh-token", "account_id": "account-of-the-user" },
            "last_refresh": "2025-01-01T00:00:00Z",
        }));
        let script = format!(
            "/usr/bin/python3 -c 'import json,os; t=json.load(open(os.path.expanduser(\"~/.codex/auth.json\")))[\"tokens\"]; print(t[\"access_token\"], t[\"account_id\"])' > seen; read t a < seen\n\
             curl -sS -m 60 -H \"Authorization: Bearer $t\" -H \"ChatGPT-Account-Id: $a\" https://api.test:{port}/v1/responses; echo\n\
             curl -sS -m 60 -H \"X-Other: $t\" https://api.test:{port}/v1/responses\n\
             for p in v1/organization/admin_api_keys backend-api/conversations backend-api/wham/tasks 'v1/responses/%2e%2e/files' v1//files backend-api/codex/responses; do\n\
             printf '%s ' $p; curl -sS -m 60 -o body -w '%{{http_code}}\\n' --path-as-is -H \"Authorization: Bearer $t\" https://api.test:{port}/$p; cat body | grep -o 'not used for this request'; done\n"
        );
        let ran = server.sh(stage, &policy(stage, &server, "codex"), &script);
        let out = ran.stdout();
        assert!(out.contains(&format!("Bearer {}", "*".repeat(21))), "{ran:?}");
        assert!(out.contains("the secret login of codex is not for header:x-other"), "{ran:?}");
        // An account can do more than ask a model.
        for path in ["v1/organization/admin_api_keys", "backend-api/conversations", "backend-api/wham/tasks", "v1/responses/%2e%2e/files", "v1//files"] {
            assert!(out.contains(&format!("{path} 403\nnot used for this request\n")), "{path}: {ran:?}");
        }
        assert!(out.contains("backend-api/codex/responses 200\n"), "{ran:?}");
        assert!(!out.contains("account-of-the-user"), "{ran:?}");
        holds_nothing_real(stage, &out);
        let log = server.log();
        assert!(log.contains("\"chatgpt-account-id\": \"account-of-the-user\""), "{log}");
        let stored = std::fs::read_to_string(own).expect("the file");
        assert!(stored.contains("refresh-token-number-1") && stored.contains("id-token-of-the-user"), "{stored}");
    }

    fn requests_to_amazon_are_signed_anew(stage) {
        let Some(server) = vendor(stage) else { return };
        let port = server.port;
        let mut flags = server.place("api.test");
        let host = format!("api.test:{port}");
        flags.extend(["--allow-host".to_owned(), host.clone(), "--aws".to_owned(), host.clone()]);
        let env = [
            ("AWS_ACCESS_KEY_ID", "AKIAREALREALREAL"),
            ("AWS_SECRET_ACCESS_KEY", "real-key-of-amazon-0123456789"),
            ("AWS_SESSION_TOKEN", "real-token-of-the-session-0123456789"),
        ];
        let script = format!(
            "u=https://{host}/aws; k=$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY; echo \"$k [$AWS_SESSION_TOKEN]\"\n\
             s() {{ curl -sS -m 60 --aws-sigv4 aws:amz:eu-west-1:dynamodb --user \"$k\" \"$@\"; echo; }}\n\
             s $u/get\n\
             s \"$u/query?a=1&b=2\"\n\
             s -d '{{\"Table\": \"x\"}}' $u/post\n\
             head -c 1000000 /dev/zero > body; s -H 'Content-Type: application/octet-stream' --data-binary @body $u/large\n\
             curl -sS -m 60 $u/unsigned; curl -sS -m 60 -u a:b $u/other\n\
             curl -sS -m 60 --aws-sigv4 aws:amz:eu-west-1:s3 --user AKIAOWNOWNOWN:own-key $u/own\n\
             curl -sS -m 60 --aws-sigv4 aws:amz:eu-west-1:sts --user \"$k\" -d Action=AssumeRole $u/sts\n\
             curl -sS -m 60 --aws-sigv4 aws:amz:eu-west-1:ec2 --user \"$k\" -d Action=CreateKeyPair $u/ec2\n\
             curl -sS -m 60 --aws-sigv4 aws:amz:eu-west-1:ec2 --user \"$k\" -d Action=DescribeKeyPairs $u/describe\n\
             /usr/bin/python3 - {host} <<'END'\n{PRESIGN}\nEND\n"
        );
        let ran = server.sh_env(stage, &flags, &env, &script);
        let out = ran.stdout();
        assert!(out.starts_with("ironcage-AWS-") && out.contains(" []\n"), "{ran:?}");
        for path in ["get", "query", "post", "large", "describe", "presigned", "unsigned-payload"] {
            assert!(out.contains(&format!("\"signed\": \"/aws/{path}\"")), "{path}: {ran:?}");
        }
        assert!(out.contains("\"length\": 1000000"), "{ran:?}");
        for reason in [
            "requests to this host are signed: this one is not",
            "its credentials are not a signature",
            "with a key of another cage",
            "the signature does not match the request",
            "the signature is not valid now",
            "chunk-signed bodies are not supported",
            "ec2:CreateKeyPair hands out credentials",
            // Its host is named without a star, but is not a host of that service.
            "sts hands out credentials",
        ] {
            assert!(out.contains(reason), "{reason}: {ran:?}");
        }
        holds_nothing_real(stage, &out);
        assert!(!out.contains("AKIAREAL"), "{ran:?}");
        let log = server.log();
        assert_eq!(log.lines().count(), 7, "{log}");
        assert!(!log.contains("ironcage-AWS"), "{log}");
        // Without keys there is no cage.
        let ran = server.sh(stage, &flags, "true");
        assert_eq!(ran.code(), 125, "{ran:?}");
        assert!(format!("{ran:?}").contains("the variable AWS_ACCESS_KEY_ID is not set"), "{ran:?}");
    }

    fn requests_of_http_2_are_signed_anew_and_keys_come_from_a_command(stage) {
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let host = format!("api.test:{}", server.port);
        let keys = json!({ "Version": 1, "AccessKeyId": "AKIAREALREALREAL", "SecretAccessKey": "real-key-of-amazon-0123456789" });
        let file = users_file(stage, ".keys", &keys);
        let mut flags = server.place("api.test");
        let from = format!("command:cat {}@{host}", file.display());
        flags.extend(["--allow-host".to_owned(), host.clone(), "--aws".to_owned(), from]);
        let script = format!(
            "curl -sS -m 60 --http2 --aws-sigv4 aws:amz:eu-west-1:sqs --user \"$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY\" -d 'a=b' https://{host}/reflect\n"
        );
        let ran = server.sh(stage, &flags, &script);
        let log = server.log();
        assert!(log.starts_with("2.0 POST /reflect") && log.contains("Credential=AKIAREALREALREAL/"), "{log} {ran:?}");
        assert!(!log.contains("ironcage-AWS"), "{log}");
        holds_nothing_real(stage, &ran.stdout());
    }
}

/// Signs in the query, and by hand what curl does not sign.
const PRESIGN: &str = r#"
import datetime, hashlib, hmac, http.client, os, ssl, sys, urllib.parse
host = sys.argv[1]
ident, key = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
def now(offset=0): return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=offset)).strftime("%Y%m%dT%H%M%SZ")
def sign(method, path, query, headers, payload, stamp):
    scope = f"{stamp[:8]}/eu-west-1/s3/aws4_request"
    quote = lambda text: urllib.parse.quote(text, safe="-._~")
    asked = "&".join(f"{quote(n)}={quote(v)}" for n, v in sorted(query.items()))
    names = ";".join(sorted(headers))
    lines = [method, path, asked] + [f"{n}:{headers[n]}" for n in sorted(headers)] + ["", names, payload]
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256("\n".join(lines).encode()).hexdigest()])
    made = ("AWS4" + key).encode()
    for part in scope.split("/"): made = hmac.new(made, part.encode(), hashlib.sha256).digest()
    return asked, names, scope, hmac.new(made, text.encode(), hashlib.sha256).hexdigest()
def send(method, target, headers, body=None):
    connection = http.client.HTTPSConnection(host, timeout=60)
    connection.request(method, target, body=body, headers=headers)
    print(connection.getresponse().read().decode())
def presigned(path, stamp, expires=300, change=""):
    query = {"X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Credential": f"{ident}/{stamp[:8]}/eu-west-1/s3/aws4_request",
             "X-Amz-Date": stamp, "X-Amz-Expires": str(expires), "X-Amz-SignedHeaders": "host"}
    asked, _, _, signature = sign("GET", path, query, {"host": host}, "UNSIGNED-PAYLOAD", stamp)
    send("GET", f"{path}?{asked}&X-Amz-Signature={signature}{change}", {})
def headers(path, payload, body):
    stamp = now()
    said = {"host": host, "x-amz-content-sha256": payload, "x-amz-date": stamp}
    _, names, scope, signature = sign("PUT", path, {}, said, payload, stamp)
    said["authorization"] = f"AWS4-HMAC-SHA256 Credential={ident}/{scope}, SignedHeaders={names}, Signature={signature}"
    send("PUT", path, said, body)
presigned("/aws/presigned", now())
presigned("/aws/changed", now(), change="&more=1")
presigned("/aws/expired", now(-1000), expires=10)
headers("/aws/unsigned-payload", "UNSIGNED-PAYLOAD", b"x" * 300000)
headers("/aws/streamed", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", b"x")
"#;
