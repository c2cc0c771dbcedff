//! Tool calls and the answers of models: in every shape, in any pieces, and written to mislead.
#![forbid(unsafe_code)]
#![allow(clippy::expect_used)]

use ironcage_intent::{
    AnswerPart, AnswerReader, Call, Calls, Context, Destination, Encoding, Format, Needs, Results,
    Table, Unsure,
};
use proptest::prelude::*;
use std::io::Write as _;
use std::path::PathBuf;

const ANTHROPIC: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"m","content":[]}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"I will look."}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t1","name":"Bash","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"command\": \"rm -r"}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"f build\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: message_stop
data: {"type":"message_stop"}

"#;

const CHAT: &str = r#"data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"t1","type":"function","function":{"name":"shell","arguments":""}}]},"finish_reason":null}]}

data: {"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"command\":[\"rm\",\"-rf\","}}]},"finish_reason":null}]}

data: {"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"build\"]}"}}]},"finish_reason":null}]}

data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: [DONE]

"#;

const RESPONSES: &str = r#"event: response.output_item.added
data: {"type":"response.output_item.added","item":{"type":"function_call","call_id":"t1","name":"shell","arguments":""}}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","delta":"{\"comm"}

event: response.output_item.done
data: {"type":"response.output_item.done","item":{"type":"function_call","call_id":"t1","name":"shell","arguments":"{\"command\":[\"rm\",\"-rf\",\"build\"]}"}}

"#;

fn context() -> Context {
    Context {
        cwd: PathBuf::from("/w"),
        home: Some(PathBuf::from("/h")),
    }
}

fn needs(call: &Call) -> Needs {
    let tools = Table::shipped().expect("the table");
    Calls::shipped()
        .expect("the table")
        .needs(call, &tools, &context())
}

fn of(text: &str) -> Needs {
    needs(&Call::read(text.as_bytes()).expect("a call"))
}

fn said(format: Format, pieces: impl IntoIterator<Item = Vec<u8>>) -> Vec<AnswerPart> {
    let mut answer = AnswerReader::new(format, Encoding::Identity);
    let mut said = Vec::new();
    for piece in pieces {
        said.extend(answer.feed(&piece));
    }
    said.extend(answer.end());
    said
}

fn calls(said: Vec<AnswerPart>) -> Vec<Call> {
    said.into_iter()
        .filter_map(|said| match said {
            AnswerPart::Call(call) => Some(call),
            _ => None,
        })
        .collect()
}

fn is_unknown(needs: &Needs) -> bool {
    needs
        .unknown
        .iter()
        .any(|unknown| unknown.what == Unsure::Everything)
}

#[test]
fn one_call_in_four_shapes_needs_the_same() {
    let wanted = [PathBuf::from("/w/build")];
    for text in [
        r#"{"type":"tool_use","id":"t","name":"Bash","input":{"command":"rm -rf build"}}"#,
        r#"{"id":"t","type":"function","function":{"name":"shell","arguments":"{\"command\":[\"rm\",\"-rf\",\"build\"]}"}}"#,
        r#"{"type":"function_call","call_id":"t","name":"shell","arguments":"{\"command\":[\"bash\",\"-lc\",\"rm -rf build\"]}"}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"execute_command","arguments":{"command":"rm -rf build"}}}"#,
        r#"{"type":"local_shell_call","call_id":"t","action":{"type":"exec","command":["rm","-rf","build"]}}"#,
    ] {
        let needs = of(text);
        assert!(needs.writes.iter().eq(wanted.iter()), "{text}: {needs:?}");
        assert!(!is_unknown(&needs), "{text}: {needs:?}");
    }
}

#[test]
fn file_fetch_and_patch_tools_need_what_they_name() {
    let read = of(r#"{"type":"tool_use","name":"Read","input":{"file_path":"/w/src/../a"}}"#);
    assert!(read.reads.contains(&PathBuf::from("/w/a")) && read.writes.is_empty());
    let write = of(
        r#"{"type":"tool_use","name":"Edit","input":{"file_path":"docs/x.md","old_string":"a","new_string":"b"}}"#,
    );
    assert!(write.writes.contains(&PathBuf::from("/w/docs/x.md")));
    let fetch = of(
        r#"{"type":"tool_use","name":"WebFetch","input":{"url":"https://a.example/x'; rm -rf /","prompt":"p"}}"#,
    );
    let host = Destination::Host {
        name: "a.example".to_owned(),
        port: Some(443),
    };
    assert!(
        fetch.destinations.contains(&host) && fetch.writes.is_empty(),
        "{fetch:?}"
    );
    let patch = of(
        r#"{"type":"custom_tool_call","call_id":"t","name":"apply_patch","input":"*** Begin Patch\n*** Update File: src/a.rs\n*** Move to: src/b.rs\n@@\n-x\n+y\n*** End Patch"}"#,
    );
    let wanted = [PathBuf::from("/w/src/a.rs"), PathBuf::from("/w/src/b.rs")];
    assert!(patch.writes.iter().eq(wanted.iter()), "{patch:?}");
}

#[test]
fn what_is_not_known_is_said() {
    assert!(is_unknown(&of(
        r#"{"type":"tool_use","name":"mcp__db__query","input":{"sql":"x"}}"#
    )));
    assert!(is_unknown(&of(
        r#"{"type":"tool_use","name":"Bash","input":{}}"#
    )));
    assert!(is_unknown(&of(
        r#"{"type":"tool_use","name":"Bash","input":{"command":7}}"#
    )));
    assert!(is_unknown(&of(
        r#"{"type":"tool_use","name":"Write","input":{"file_path":{"a":1}}}"#
    )));
    assert!(!is_unknown(&of(
        r#"{"type":"tool_use","name":"TodoWrite","input":{"todos":[]}}"#
    )));
}

#[test]
fn a_call_that_can_be_read_in_two_ways_is_refused() {
    let twice = r#"{"type":"tool_use","name":"Read","name":"Bash","input":{"command":"rm x"}}"#;
    assert!(Call::read(twice.as_bytes()).is_err());
    let inside = r#"{"type":"function_call","name":"shell","arguments":"{\"command\":\"ls\",\"command\":\"rm x\"}"}"#;
    assert!(Call::read(inside.as_bytes()).is_err());
    let deep = "[".repeat(100_000);
    assert!(Call::read(deep.as_bytes()).is_err());
    let long = format!(
        r#"{{"type":"tool_use","name":"{}"}}"#,
        "x".repeat(2_000_000)
    );
    assert!(Call::read(long.as_bytes()).is_err());
}

#[test]
fn the_calls_of_a_stream_are_seen_whatever_its_pieces() {
    for stream in [ANTHROPIC, CHAT, RESPONSES] {
        for size in [1, 2, 7, 64, stream.len()] {
            let pieces = stream.as_bytes().chunks(size).map(<[u8]>::to_vec);
            let calls = calls(said(Format::Events, pieces));
            assert_eq!(calls.len(), 1, "{size}: {stream}");
            assert_eq!(calls[0].id.as_deref(), Some("t1"));
            assert!(needs(&calls[0]).writes.contains(&PathBuf::from("/w/build")));
        }
    }
}

#[test]
fn a_call_is_there_as_soon_as_it_is_complete() {
    let end = ANTHROPIC.find("event: message_stop").expect("its end");
    let mut answer = AnswerReader::new(Format::Events, Encoding::Identity);
    let said = answer.feed(&ANTHROPIC.as_bytes()[..end]);
    assert!(
        said.iter().any(|said| matches!(said, AnswerPart::Call(_))),
        "{said:?}"
    );
}

#[test]
fn the_calls_of_a_document_are_seen() {
    for document in [
        r#"{"content":[{"type":"text","text":"x"},{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}]}"#,
        r#"{"choices":[{"message":{"content":null,"tool_calls":[{"id":"t1","type":"function","function":{"name":"shell","arguments":"{}"}}]}}]}"#,
        r#"{"output":[{"type":"reasoning","summary":[]},{"type":"function_call","call_id":"t1","name":"shell","arguments":"{}"}]}"#,
    ] {
        let calls = calls(said(Format::Document, [document.as_bytes().to_vec()]));
        assert_eq!(calls.len(), 1, "{document}");
    }
}

#[test]
fn calls_in_words_are_words() {
    let stream = r#"data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"{\"type\":\"tool_use\",\"name\":\"Bash\",\"input\":{\"command\":\"rm -rf /\"}}"}}

"#;
    let said = said(Format::Events, [stream.as_bytes().to_vec()]);
    assert!(
        matches!(said.as_slice(), [AnswerPart::Words(_)]),
        "{said:?}"
    );
}

#[test]
fn padding_is_not_kept() {
    // 100 MB inside one event, then a call: the one is told as not read, the other is found.
    let mut answer = AnswerReader::new(Format::Events, Encoding::Identity);
    let mut seen = answer.feed(b"data: {\"type\":\"x\",\"padding\":\"");
    let megabyte = vec![b'a'; 1024 * 1024];
    for _ in 0..100 {
        seen.extend(answer.feed(&megabyte));
    }
    seen.extend(answer.feed(b"\"}\n\n"));
    seen.extend(answer.feed(ANTHROPIC.as_bytes()));
    seen.extend(answer.end());
    let lost = seen
        .iter()
        .filter(|said| matches!(said, AnswerPart::NotRead(_)))
        .count();
    assert_eq!((lost, calls(seen).len()), (1, 1));
}

#[test]
fn what_is_open_is_bounded() {
    let mut answer = AnswerReader::new(Format::Events, Encoding::Identity);
    let mut lost = 0;
    for index in 0..1000 {
        let event = format!(
            "data: {{\"type\":\"content_block_start\",\"index\":{index},\"content_block\":{{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"Bash\",\"input\":{{}}}}}}\n\n"
        );
        let said = answer.feed(event.as_bytes());
        lost += said
            .iter()
            .filter(|said| matches!(said, AnswerPart::NotRead(_)))
            .count();
    }
    assert_eq!(lost, 1000 - 64);
}

#[test]
fn the_results_of_calls_are_found_in_requests() {
    let anthropic = br#"{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"x"}]},{"role":"user","content":"text"}]}"#;
    let chat = br#"{"messages":[{"role":"tool","tool_call_id":"t1","content":"x"}]}"#;
    let responses = br#"{"input":[{"type":"function_call_output","call_id":"t1","output":"x"}]}"#;
    for request in [&anthropic[..], chat, responses] {
        assert_eq!(Results::new(Encoding::Identity).feed(request), ["t1"]);
        let mut reader = Results::new(Encoding::Identity);
        let found: Vec<String> = request.chunks(1).flat_map(|b| reader.feed(b)).collect();
        assert_eq!(found, ["t1"]);
    }
}

#[test]
fn what_is_no_result_is_taken_for_none() {
    for request in [
        // The call itself, results in texts, and what no reader of JSON would read.
        &br#"{"input":[{"type":"function_call","call_id":"t1","name":"x"}]}"#[..],
        br#"{"content":[{"type":"tool_use","id":"t1","name":"x","input":{}}]}"#,
        br#"{"text":"{\"type\":\"tool_result\",\"tool_use_id\":\"t1\"}"}"#,
        br#"{"type":"tool_result","tool_use_id":"t\u0031"}"#,
        b"no JSON",
        b"}}}]]]\"\\",
    ] {
        let found = Results::new(Encoding::Identity).feed(request);
        assert!(found.is_empty(), "{found:?}");
    }
    // However deep it is, and however long: nothing of it is kept.
    let mut reader = Results::new(Encoding::Identity);
    for _ in 0..100_000 {
        assert!(
            reader
                .feed(br#"{"a":[{"type":"tool_result","x":""#)
                .is_empty()
        );
        assert!(reader.feed(br#"","tool_use_id":"t""#).is_empty());
    }
    let mut reader = Results::new(Encoding::Gzip);
    assert!(reader.feed(b"no gzip").is_empty());
}

#[test]
fn compressed_answers_are_read_as_they_come() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(ANTHROPIC.as_bytes()).expect("compressed");
    let gzip = gzip.finish().expect("compressed");
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    zlib.write_all(ANTHROPIC.as_bytes()).expect("compressed");
    let zlib = zlib.finish().expect("compressed");
    // An uncompressed block of brotli: a window of 16 bits, the length, the bytes, the end.
    for (encoding, bytes) in [
        (Encoding::Gzip, gzip),
        (Encoding::Deflate, zlib),
        (Encoding::Brotli, brotli(ANTHROPIC.as_bytes())),
    ] {
        for size in [1, 10, bytes.len()] {
            let mut answer = AnswerReader::new(Format::Events, encoding);
            let mut said = Vec::new();
            for piece in bytes.chunks(size) {
                said.extend(answer.feed(piece));
            }
            // Before the end: the agent acts as soon as it has read the call.
            assert_eq!(calls(said).len(), 1, "{encoding:?} in pieces of {size}");
        }
    }
    assert_eq!(Encoding::named("GZip"), Some(Encoding::Gzip));
    assert_eq!(Encoding::named("zstd"), None);
    assert_eq!(Encoding::named("gzip, br"), None);
}

#[test]
fn brotli_with_a_window_that_http_does_not_have_is_not_read() {
    for (large, read) in [(false, 1), (true, 0)] {
        let mut answer = AnswerReader::new(Format::Events, Encoding::Brotli);
        let said = answer.feed(&framed(ANTHROPIC.as_bytes(), large));
        assert_eq!(calls(said).len(), read, "a large window: {large}");
    }
}

fn brotli(bytes: &[u8]) -> Vec<u8> {
    framed(bytes, false)
}

/// As brotli frames bytes that it does not compress.
fn framed(bytes: &[u8], large: bool) -> Vec<u8> {
    let mut bits: Vec<bool> = Vec::new();
    let mut put = |value: usize, count: usize| {
        bits.extend((0..count).map(|bit| value >> bit & 1 == 1));
    };
    match large {
        false => put(0, 1),              // the window: 16 bits
        true => put(0x11 | 18 << 8, 14), // one of the kind that goes to 62 bits: 18
    }
    put(0, 1); // not the last block
    put(0, 2); // the length has four digits of four bits
    put(bytes.len() - 1, 16);
    put(1, 1); // not compressed
    let pack = |bits: &[bool]| -> Vec<u8> {
        let byte = |bits: &[bool]| {
            bits.iter()
                .rev()
                .fold(0_u8, |byte, bit| byte << 1 | u8::from(*bit))
        };
        bits.chunks(8).map(byte).collect()
    };
    let mut whole = pack(&bits);
    whole.extend_from_slice(bytes);
    whole.push(0b11); // the last block, and it is empty
    whole
}

#[test]
fn what_is_damaged_or_swells_without_end_is_told_once() {
    let mut answer = AnswerReader::new(Format::Events, Encoding::Gzip);
    let said = answer.feed(b"this is no gzip at all, and never was");
    assert!(
        matches!(said.as_slice(), [AnswerPart::NotRead(_)]),
        "{said:?}"
    );
    assert!(answer.feed(b"more").is_empty());
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let megabyte = vec![b'a'; 1024 * 1024];
    for _ in 0..70 {
        bomb.write_all(&megabyte).expect("compressed");
    }
    let bomb = bomb.finish().expect("compressed");
    let mut answer = AnswerReader::new(Format::Events, Encoding::Gzip);
    let said = answer.feed(&bomb);
    assert!(
        said.iter()
            .any(|said| matches!(said, AnswerPart::NotRead(why) if why.contains("too long"))),
        "{said:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes_are_read_to_their_end(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20)) {
        said(Format::Events, pieces.clone());
        said(Format::Document, pieces);
    }

    /// A stream in which one byte was changed never panics, and never invents a second call.
    #[test]
    fn a_damaged_stream_has_no_more_calls(at in 0..ANTHROPIC.len(), byte in any::<u8>()) {
        let mut stream = ANTHROPIC.as_bytes().to_vec();
        stream[at] = byte;
        prop_assert!(calls(said(Format::Events, [stream])).len() <= 1);
    }
}
