use super::*;

fn row(name: &str, ratio: f64, escapes: Option<Escapes>) -> FieldRow {
    FieldRow {
        name: name.to_owned(),
        about: "<about> & more".to_owned(),
        syscall_us: 1.5,
        memory_mb: None,
        task_s: ratio,
        task_ratio: ratio,
        start_ms: 3.0,
        escapes,
        suspect: Some(Suspect::Named("none")),
    }
}

fn report() -> FieldReport {
    FieldReport {
        bench: "table",
        host: HostFacts::now(),
        reproduce: "ironcage bench table".to_owned(),
        rows: vec![row("none", 1.0, None), row("Ironcage", 1.03, None)],
        absent: vec![("gVisor".to_owned(), "not installed".to_owned())],
        quoted: QUOTED.to_vec(),
    }
}

#[test]
fn what_the_suite_found_is_entered_and_told() {
    let mut report = report();
    assert!(report.to_string().contains("not run"));
    assert_eq!(report.suspects().len(), 2);
    report.enter(
        1,
        Escapes {
            blocked: 81,
            of: 82,
        },
    );
    let text = report.to_string();
    assert!(text.contains("81 of 82"), "{text}");
    let tax = "the safety tax: +3.0 % on the agent's task, for 81 of 82 escapes stopped";
    assert!(text.contains(tax), "{text}");
    assert!(text.contains("gVisor: not measured: not installed"));
}

#[test]
fn page_and_chart_need_nothing_else_and_pass_no_markup_on() {
    let page = report().html();
    assert!(page.contains("&lt;about&gt; &amp; more"));
    assert!(!page.contains("<about>"));
    for outside in ["src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(report().svg().starts_with("<svg"));
}

#[test]
fn no_runs_are_refused() {
    let request = FieldRequest {
        ironcage: "/nonexistent".into(),
        runs: 0,
    };
    assert!(matches!(bench_field(&request), Err(BenchError::Request(_))));
}
