//! The guide has the schema as it is.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[test]
fn the_guide_has_the_schema_as_it_is() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/cedar.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let block = format!("```cedarschema\n{}```", ironcage_lease::cedar::SCHEMA);
    assert!(guide.contains(&block), "write into the guide:\n{block}");
}
