//! Signatures that Amazon publishes as examples, and what becomes of them.

use super::*;

const ID: &str = "AKIDEXAMPLE";
const KEY: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const S3_ID: &str = "AKIAIOSFODNN7EXAMPLE";
const S3_KEY: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn fields(of: &[(&str, &str)]) -> Fields {
    of.iter()
        .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
        .collect()
}

/// The key's owner signs again, with the same keys: the published signature comes out.
#[track_caller]
fn comes_back(signed: &Signed<'_>, keys: &Keys<'_>, body: &[u8], signature: &str) {
    let claim = Claim::read(signed).unwrap().unwrap();
    assert_eq!(claim.id, keys.id);
    let payload = match claim.payload(signed.fields).unwrap() {
        Payload::Said(said) => said,
        Payload::Hashed => hash(body),
    };
    let path = claim
        .is_by(keys.key, signed, &payload)
        .expect("it is by this key");
    assert_eq!(claim.is_by("another key", signed, &payload), None);
    let (target, fields) = claim.sign(keys, signed, &payload, path);
    let text = String::from_utf8(fields.iter().flat_map(|(_, value)| value.clone()).collect());
    let text = format!("{target} {}", text.unwrap());
    assert!(text.contains(signature), "{text}");
}

fn suite(method: &str, target: &str, more: &[(&str, &str)], signed: &str, signature: &str) {
    let text = format!(
        "AWS4-HMAC-SHA256 Credential={ID}/20150830/us-east-1/service/aws4_request, SignedHeaders={signed}, Signature={signature}"
    );
    let mut all = vec![
        ("host", "example.amazonaws.com"),
        ("x-amz-date", "20150830T123600Z"),
        ("authorization", text.as_str()),
    ];
    all.extend(more);
    let fields = fields(&all);
    let request = Signed {
        method,
        target,
        host: "example.amazonaws.com",
        fields: &fields,
    };
    let keys = Keys {
        id: ID,
        key: KEY,
        token: None,
    };
    comes_back(&request, &keys, b"", signature);
}

#[test]
fn signatures_of_the_published_suite_come_back() {
    let plain = "host;x-amz-date";
    suite(
        "GET",
        "/",
        &[],
        plain,
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    );
    suite(
        "POST",
        "/",
        &[],
        plain,
        "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
    );
    suite(
        "GET",
        "/?Param2=value2&Param1=value1",
        &[],
        plain,
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    );
}

fn s3(target: &str, text: &str, more: &[(&str, &str)], token: Option<&str>, signature: &str) {
    let mut all: Vec<(&str, &str)> = more.to_vec();
    if !text.is_empty() {
        all.push(("authorization", text));
    }
    let fields = fields(&all);
    let request = Signed {
        method: "GET",
        target,
        host: "examplebucket.s3.amazonaws.com",
        fields: &fields,
    };
    let keys = Keys {
        id: S3_ID,
        key: S3_KEY,
        token,
    };
    comes_back(&request, &keys, b"", signature);
}

const GET_OBJECT: &str = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
const PRESIGNED: &str = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";

fn get_object() -> String {
    format!(
        "AWS4-HMAC-SHA256 Credential={S3_ID}/20130524/us-east-1/s3/aws4_request,SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,Signature={GET_OBJECT}"
    )
}

const GET_FIELDS: [(&str, &str); 3] = [
    ("range", "bytes=0-9"),
    ("x-amz-content-sha256", EMPTY),
    ("x-amz-date", "20130524T000000Z"),
];

fn presigned() -> String {
    format!(
        "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={S3_ID}%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature={PRESIGNED}"
    )
}

#[test]
fn signatures_of_the_published_examples_of_s3_come_back_in_both_forms() {
    s3("/test.txt", &get_object(), &GET_FIELDS, None, GET_OBJECT);
    s3(&presigned(), "", &[], None, PRESIGNED);
}

#[test]
fn a_token_is_added_and_signed_and_what_the_cage_had_goes() {
    let text = get_object();
    let mut all = GET_FIELDS.to_vec();
    all.push(("authorization", &text));
    let fields = fields(&all);
    let request = Signed {
        method: "GET",
        target: "/test.txt",
        host: "examplebucket.s3.amazonaws.com",
        fields: &fields,
    };
    let claim = Claim::read(&request).unwrap().unwrap();
    let real = Keys {
        id: "AKIAREAL",
        key: "real key",
        token: Some("token-of-the-session"),
    };
    let path = claim.is_by(S3_KEY, &request, EMPTY).unwrap();
    let (target, anew) = claim.sign(&real, &request, EMPTY, path);
    let again = Signed {
        target: &target,
        fields: &anew,
        ..request
    };
    let made = Claim::read(&again).unwrap().unwrap();
    assert_eq!(made.id, "AKIAREAL");
    assert_eq!(made.is_by("real key", &again, EMPTY), Some(path));
    assert!(made.names.contains(&TOKEN.to_owned()));
    assert_eq!(field(&anew, TOKEN), Some("token-of-the-session"));
    // The same in the query.
    let target = presigned();
    let empty = Fields::new();
    let request = Signed {
        target: &target,
        fields: &empty,
        ..request
    };
    let claim = Claim::read(&request).unwrap().unwrap();
    let path = claim.is_by(S3_KEY, &request, "UNSIGNED-PAYLOAD").unwrap();
    let (target, anew) = claim.sign(&real, &request, "UNSIGNED-PAYLOAD", path);
    assert!(
        target.contains("X-Amz-Security-Token=token-of-the-session"),
        "{target}"
    );
    assert!(!target.contains(S3_ID) && anew.is_empty(), "{target}");
    let again = Signed {
        target: &target,
        fields: &anew,
        ..request
    };
    let made = Claim::read(&again).unwrap().unwrap();
    assert_eq!(
        made.is_by("real key", &again, "UNSIGNED-PAYLOAD"),
        Some(path)
    );
}

#[test]
fn what_is_no_such_signature_or_changed_is_not_signed() {
    let text = get_object();
    let request = |target: &'static str, list: &[(&str, &str)]| {
        let fields = fields(list);
        let signed = Signed {
            method: "GET",
            target,
            host: "examplebucket.s3.amazonaws.com",
            fields: &fields,
        };
        Claim::read(&signed)
            .map(|claim| claim.map(|claim| claim.is_by(S3_KEY, &signed, EMPTY).is_some()))
    };
    let mut all = GET_FIELDS.to_vec();
    all.push(("authorization", &text));
    assert_eq!(request("/test.txt", &all), Ok(Some(true)));
    assert_eq!(request("/other.txt", &all), Ok(Some(false)));
    assert_eq!(request("/test.txt?x=1", &all), Ok(Some(false)));
    assert_eq!(request("/test.txt", &[]), Ok(None));
    for (name, value) in [
        ("authorization", "Bearer x"),
        ("authorization", "AWS4-ECDSA-P256-SHA256 Credential=a/b"),
        ("authorization", "AWS4-HMAC-SHA256 Credential=a"),
    ] {
        assert!(request("/", &[(name, value)]).is_err(), "{value}");
    }
    let day = text.replace("20130524/", "20130525/");
    assert!(request("/test.txt", &[("authorization", &day), GET_FIELDS[2]]).is_err());
    let claim = Claim {
        query: false,
        id: String::new(),
        scope: "d/r/s3/aws4_request".into(),
        stamp: String::new(),
        expires: None,
        names: Vec::new(),
        signature: String::new(),
    };
    let chunks = fields(&[(HASH, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")]);
    assert!(claim.payload(&chunks).is_err());
    let free = fields(&[(HASH, "STREAMING-UNSIGNED-PAYLOAD-TRAILER")]);
    assert!(claim.payload(&free).is_ok());
    assert_eq!(claim.payload(&Fields::new()), Ok(Payload::Hashed));
}

#[test]
fn a_signature_is_for_its_time() {
    assert_eq!(seconds("19700101T000000Z"), Some(0));
    assert_eq!(seconds("20000229T000000Z"), Some(951_782_400));
    assert_eq!(seconds("20250901T123045Z"), Some(1_756_729_845));
    for wrong in [
        "",
        "20150830T123600",
        "2015-830T123600Z",
        "20151330T123600Z",
        "20150830X123600Z",
    ] {
        assert_eq!(seconds(wrong), None, "{wrong}");
    }
    let claim = |expires| Claim {
        query: expires > 0,
        id: String::new(),
        scope: String::new(),
        stamp: "20250901T123045Z".into(),
        expires: (expires > 0).then_some(expires),
        names: Vec::new(),
        signature: String::new(),
    };
    let at = |offset: i64| {
        let seconds = 1_756_729_845_i64 + offset;
        UNIX_EPOCH + std::time::Duration::from_secs(seconds.unsigned_abs())
    };
    for (offset, holds) in [
        (0, true),
        (899, true),
        (901, false),
        (-899, true),
        (-901, false),
    ] {
        assert_eq!(claim(0).is_now(at(offset)), holds, "{offset}");
    }
    assert!(claim(3600).is_now(at(3599)) && !claim(3600).is_now(at(3601)));
    assert!(!claim(604_801).is_now(at(0)));
}
