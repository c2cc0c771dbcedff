use super::*;
use ironcage_model::KeyPurpose;
use proptest::prelude::*;
use ring::signature::{Ed25519KeyPair, KeyPair};

const SESSION: &[u8] = b"0123456789abcdef0123456789abcdef";

struct Server(Ed25519KeyPair);

impl Server {
    fn new(seed: u8) -> Server {
        Server(Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap())
    }

    fn key(&self) -> Vec<u8> {
        strings(&[b"ssh-ed25519", self.0.public_key().as_ref()])
    }

    fn bind(&self, session: &[u8], forwarding: u8) -> Vec<u8> {
        let signature = strings(&[b"ssh-ed25519", self.0.sign(session).as_ref()]);
        let mut message = vec![EXTENSION];
        message.extend(strings(&[SESSION_BIND, &self.key(), session, &signature]));
        message.push(forwarding);
        message
    }
}

fn strings(parts: &[&[u8]]) -> Vec<u8> {
    let mut all = Vec::new();
    parts.iter().for_each(|part| put_string(&mut all, part));
    all
}

fn rules() -> SshRules {
    let host = ProvenHost {
        host: "git.example".into(),
        keys: vec![Server::new(1).key()],
    };
    let key = |name: &str, signs_commits, logins| SshKey {
        name: name.into(),
        comment: format!("the {name}"),
        blob: strings(&[b"ssh-ed25519", name.as_bytes()]),
        signs_commits,
        logins,
    };
    SshRules {
        keys: vec![
            key("login", false, vec![host]),
            key("commit", true, Vec::new()),
        ],
    }
}

fn blob(name: &str) -> Vec<u8> {
    strings(&[b"ssh-ed25519", name.as_bytes()])
}

fn login(session: &[u8], key: &str, host_key: Option<&[u8]>) -> Vec<u8> {
    let mut data = strings(&[session]);
    data.push(50);
    let method: &[u8] = match host_key {
        Some(_) => b"publickey-hostbound-v00@openssh.com",
        None => b"publickey",
    };
    data.extend(strings(&[b"git", b"ssh-connection", method]));
    data.push(1);
    data.extend(strings(&[b"ssh-ed25519", &blob(key)]));
    host_key
        .into_iter()
        .for_each(|key| put_string(&mut data, key));
    data
}

fn signature(namespace: &[u8]) -> Vec<u8> {
    let mut data = b"SSHSIG".to_vec();
    data.extend(strings(&[namespace, b"", b"sha512", &[0; 64]]));
    data
}

fn sign(key: &str, data: &[u8]) -> Vec<u8> {
    let mut message = vec![AGENT_SIGN_REQUEST];
    message.extend(strings(&[&blob(key), data]));
    message.extend(0_u32.to_be_bytes());
    message
}

fn steps(messages: &[Vec<u8>]) -> Step {
    let mut connection = SshConnection::default();
    let rules = rules();
    let mut last = Step::More;
    for message in messages {
        connection.receive(&framed(message));
        last = connection.next(&rules);
        assert!(matches!(connection.next(&rules), Step::More));
    }
    last
}

fn reason(step: Step) -> &'static str {
    match step {
        Step::Denied { denial, reply } => {
            assert_eq!(reply, framed(&[FAILURE]));
            denial.reason.code()
        }
        Step::Close(denial) => denial.reason.code(),
        other => panic!("not denied: {other:?}"),
    }
}

#[test]
fn a_login_to_the_host_of_a_key_is_a_use_and_the_agent_gets_the_session_first() {
    let server = Server::new(1);
    for host_key in [None, Some(server.key())] {
        let bind = server.bind(SESSION, 0);
        let data = login(SESSION, "login", host_key.as_deref());
        let Step::Use(used) = steps(&[bind.clone(), sign("login", &data)]) else {
            panic!("no use");
        };
        assert_eq!(used.key, "login");
        let (host, user) = ("git.example".into(), "git".into());
        assert_eq!(used.purpose, KeyPurpose::Login { host, user });
        let Exchange::Ssh(mut exchange) = used.exchange else {
            panic!("another agent");
        };
        let mut wanted = framed(&bind);
        wanted.extend(framed(&sign("login", &data)));
        assert_eq!(exchange.begin(), wanted);
        // An agent that knows nothing of sessions still signs.
        assert_eq!(exchange.receive(&framed(&[FAILURE])), Progress::More);
        let mut signed = vec![AGENT_SIGN_RESPONSE];
        put_string(&mut signed, b"signature");
        let signed = framed(&signed);
        let (first, rest) = signed.split_at(7);
        assert_eq!(exchange.receive(first), Progress::More);
        assert_eq!(exchange.receive(rest), Progress::Signed(signed.clone()));
    }
}

#[test]
fn a_login_elsewhere_is_denied() {
    let (own, foreign) = (Server::new(1), Server::new(2));
    let data = login(SESSION, "login", None);
    let request = sign("login", &data);
    let bound = |message: Vec<u8>| reason(steps(&[message, request.clone()]));
    assert_eq!(
        reason(steps(std::slice::from_ref(&request))),
        "key-host-not-proved"
    );
    assert_eq!(bound(foreign.bind(SESSION, 0)), "key-host-not-allowed");
    assert_eq!(
        bound(own.bind(b"another session", 0)),
        "key-host-not-proved"
    );
    assert_eq!(bound(own.bind(SESSION, 1)), "key-forwarded");
    // The foreign server's signature in the name of the own one.
    let mut forged = vec![EXTENSION];
    let signature = strings(&[b"ssh-ed25519", foreign.0.sign(SESSION).as_ref()]);
    forged.extend(strings(&[SESSION_BIND, &own.key(), SESSION, &signature]));
    forged.push(0);
    assert_eq!(reason(steps(&[forged.clone()])), "key-host-signature");
    assert_eq!(bound(forged), "key-host-not-proved");
    // A login that names another server than the one that proved itself.
    let data = login(SESSION, "login", Some(&foreign.key()));
    let other = steps(&[own.bind(SESSION, 0), sign("login", &data)]);
    assert_eq!(reason(other), "key-host-not-proved");
    // A login that names another key than the one that is to sign.
    let data = login(SESSION, "commit", None);
    let other = steps(&[own.bind(SESSION, 0), sign("login", &data)]);
    assert_eq!(reason(other), "key-purpose-unknown");
}

#[test]
fn commits_are_signed_by_the_keys_for_them_and_nothing_else_is() {
    let Step::Use(used) = steps(&[sign("commit", &signature(b"git"))]) else {
        panic!("no use");
    };
    assert_eq!(used.purpose, KeyPurpose::Git);
    let denied = |key: &str, data: &[u8]| reason(steps(&[sign(key, data)]));
    assert_eq!(denied("commit", &signature(b"file")), "key-other-namespace");
    assert_eq!(denied("login", &signature(b"git")), "key-not-for-commits");
    let login = login(SESSION, "commit", None);
    assert_eq!(denied("commit", &login), "key-not-for-logins");
    assert_eq!(denied("another", &signature(b"git")), "key-not-given");
    for odd in [&b""[..], b"SSHSIG", b"a document", &[0; 200]] {
        assert_eq!(denied("commit", odd), "key-purpose-unknown");
    }
    let mut trailing = signature(b"git");
    trailing.push(0);
    assert_eq!(denied("commit", &trailing), "key-purpose-unknown");
    let mut flags = sign("commit", &signature(b"git"));
    *flags.last_mut().unwrap() = 8;
    assert_eq!(reason(steps(&[flags])), "key-request-malformed");
}

#[test]
fn keys_are_listed_and_never_changed() {
    let Step::Reply(listed) = steps(&[vec![REQUEST_IDENTITIES]]) else {
        panic!("no list");
    };
    let listed = identities(&listed).unwrap();
    let comments: Vec<&str> = listed.iter().map(|key| key.comment.as_str()).collect();
    assert_eq!(comments, ["the login", "the commit"]);
    for number in [0, 1, 9, 17, 18, 19, 20, 21, 22, 23, 25, 26, 28, 255] {
        let step = steps(&[vec![number, 0, 0, 0, 0]]);
        assert_eq!(reason(step), "key-request-not-allowed", "{number}");
    }
    let mut other = vec![EXTENSION];
    put_string(&mut other, b"query");
    assert_eq!(reason(steps(&[other])), "key-request-not-allowed");
    assert_eq!(reason(steps(&[Vec::new()])), "key-request-malformed");
}

#[test]
fn a_message_that_is_too_long_ends_the_connection_before_it_is_read() {
    let mut connection = SshConnection::default();
    connection.receive(&(LONGEST_REQUEST as u32).to_be_bytes());
    assert!(matches!(connection.next(&rules()), Step::More));
    let mut connection = SshConnection::default();
    connection.receive(&(LONGEST_REQUEST as u32 + 1).to_be_bytes());
    assert_eq!(reason(connection.next(&rules())), "key-request-too-long");
}

#[test]
fn an_agent_that_answers_anything_else_has_not_signed() {
    let refused = Progress::Refused(framed(&[FAILURE]));
    for answer in [
        framed(&[FAILURE]),
        framed(&[]),
        framed(&[AGENT_SIGN_RESPONSE]),
        framed(&[AGENT_SIGN_RESPONSE, 0, 0, 0, 9, 1]),
        vec![0xff; 4],
    ] {
        let mut exchange = SshExchange::new(Vec::new(), vec![AGENT_SIGN_REQUEST]);
        exchange.begin();
        assert_eq!(exchange.receive(&answer), refused, "{answer:?}");
    }
}

proptest! {
    /// Whatever is written, in whatever pieces: no key is used that was not asked for by name, and
    /// only for a commit, as no server has proved itself.
    #[test]
    fn arbitrary_bytes_use_no_key(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..16)) {
        let mut connection = SshConnection::default();
        for piece in &pieces {
            connection.receive(piece);
            for _ in 0..64 {
                match connection.next(&rules()) {
                    Step::More | Step::Close(_) => break,
                    Step::Use(_) => prop_assert!(false, "a use"),
                    _ => {}
                }
            }
        }
    }

    /// A login is signed only as it was written: any other byte in it is another login, or none.
    #[test]
    fn a_changed_login_is_never_another_session(at in 0_usize..200, bit in 0_u8..8) {
        let server = Server::new(1);
        let mut data = login(SESSION, "login", None);
        let at = at % data.len();
        data[at] ^= 1 << bit;
        if let Step::Use(used) = steps(&[server.bind(SESSION, 0), sign("login", &data)]) {
            // The name of the user and of the algorithm are all that may differ.
            let session = SESSION.len() + 4;
            prop_assert!(at > session, "{at}");
            let is_login = matches!(used.purpose, KeyPurpose::Login { .. });
            prop_assert!(is_login);
        }
    }
}
