//! Files of logins as the agents write them.

use super::*;

fn file(name: &str, format: LoginFormat, text: &str) -> (std::path::PathBuf, TokenFile) {
    let place = std::env::temp_dir().join(format!("login-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let path = place.join("file.json");
    std::fs::write(&path, text).unwrap();
    let file = TokenFile::open(&path, format).unwrap();
    (place, file)
}

#[test]
fn claudes_file_is_read_and_renewed_and_the_rest_of_it_stays() {
    let text = r#"{"claudeAiOauth":{"accessToken":"old-access-token","refreshToken":"old-refresh-token","expiresAt":1700000000123,"scopes":["a"],"subscriptionType":"max"},"other":1}"#;
    let (place, file) = file("claude", LoginFormat::Claude, text);
    let (refresh, tokens) = file.read().unwrap();
    assert_eq!(*refresh, "old-refresh-token");
    assert_eq!(
        (tokens.access.as_str(), tokens.until),
        ("old-access-token", Some(1_700_000_000))
    );
    assert!(!tokens.hold_beyond(SystemTime::now()));
    let _alone = file.lock().unwrap();
    let renewed = br#"{"access_token":"new-access-token","refresh_token":"new-refresh-token","expires_in":3600}"#;
    file.store(&Renewed::read(renewed).unwrap()).unwrap();
    let (refresh, tokens) = file.read().unwrap();
    assert_eq!(
        (refresh.as_str(), tokens.access.as_str()),
        ("new-refresh-token", "new-access-token")
    );
    assert!(tokens.hold_beyond(SystemTime::now()));
    let text = std::fs::read_to_string(place.join("file.json")).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&value["other"], &value["claudeAiOauth"]["subscriptionType"]),
        (&1.into(), &"max".into())
    );
    // Nothing is left beside it, and nobody else can read it.
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1);
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(place.join("file.json"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    // Where no other is given, the token that renews stays.
    let renewed = br#"{"access_token":"newer-access-token"}"#;
    file.store(&Renewed::read(renewed).unwrap()).unwrap();
    assert_eq!(file.read().unwrap().0.as_str(), "new-refresh-token");
    assert!(Renewed::read(br#"{"error":"no"}"#).is_none());
    assert!(Renewed::read(b"{\"access_token\":\"with\\r\\nmore: x\"}").is_none());
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn codexs_file_is_read_and_renewed() {
    // {"exp":1700000000}
    let access = "eyJhbGciOiJub25lIn0.eyJleHAiOjE3MDAwMDAwMDB9.signature";
    let text = format!(
        r#"{{"OPENAI_API_KEY":null,"tokens":{{"id_token":"a.b.c-id-token","access_token":"{access}","refresh_token":"old-refresh-token","account_id":"account-of-the-user"}},"last_refresh":"2025-01-01T00:00:00Z"}}"#
    );
    let (place, file) = file("codex", LoginFormat::Codex, &text);
    let (_, tokens) = file.read().unwrap();
    assert_eq!(tokens.until, Some(1_700_000_000));
    assert_eq!(tokens.account.as_deref(), Some("account-of-the-user"));
    let renewed = br#"{"access_token":"new-access-token","refresh_token":"new-refresh-token","id_token":"new-id-token"}"#;
    file.store(&Renewed::read(renewed).unwrap()).unwrap();
    let text = std::fs::read_to_string(place.join("file.json")).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["tokens"]["id_token"], "new-id-token");
    assert_ne!(value["last_refresh"], "2025-01-01T00:00:00Z");
    std::fs::write(
        place.join("file.json"),
        r#"{"OPENAI_API_KEY":"sk-x","tokens":null}"#,
    )
    .unwrap();
    assert!(file.read().is_err_and(|why| why == LoginError::NoLogin));
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn times_are_written_as_the_standard_has_it() {
    assert_eq!(written(0), "1970-01-01T00:00:00Z");
    assert_eq!(written(951_782_400), "2000-02-29T00:00:00Z");
    assert_eq!(written(1_756_729_845), "2025-09-01T12:30:45Z");
}
