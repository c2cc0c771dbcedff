//! The class of what SQL does, by parsing it.
//!
//! Databases read the same text differently: comments, backslashes and dollar quotes end a string
//! in one and not in another. Text with any of these is not classified, and so not allowed.

use serde::{Deserialize, Serialize};
use sqlparser::ast::{
    Expr, ObjectName, ObjectNamePart, Query, SetExpr, Statement, TableFactor, TableObject, Visit,
    Visitor, visit_expressions,
};
use sqlparser::dialect::GenericDialect;
use sqlparser::parser::Parser;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Longest text that is parsed.
const LONGEST: usize = 64 * 1024;

/// What a statement does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SqlClass {
    /// It returns rows and changes nothing.
    Read,
    /// It adds rows.
    Insert,
    /// It changes rows.
    Update,
    /// It removes rows.
    Delete,
    /// It changes tables, views or indexes.
    Schema,
}

impl SqlClass {
    /// Every class.
    pub const ALL: [SqlClass; 5] = [
        SqlClass::Read,
        SqlClass::Insert,
        SqlClass::Update,
        SqlClass::Delete,
        SqlClass::Schema,
    ];

    /// The name in policies.
    pub const fn name(self) -> &'static str {
        match self {
            SqlClass::Read => "read",
            SqlClass::Insert => "insert",
            SqlClass::Update => "update",
            SqlClass::Delete => "delete",
            SqlClass::Schema => "schema",
        }
    }
}

/// Functions that do more than compute: they read files, write, connect, or change settings.
const FUNCTIONS: &[&str] = &[
    "load_extension",
    "writefile",
    "readfile",
    "edit",
    "fts3_tokenizer",
    "load_file",
    "sys_exec",
    "sys_eval",
    "sys_get",
    "sys_set",
    "xp_cmdshell",
    "openrowset",
    "opendatasource",
    "openquery",
    "lo_import",
    "lo_export",
    "lo_create",
    "lo_unlink",
    "lo_put",
    "lo_from_bytea",
    "set_config",
    "setval",
    "nextval",
    "query_to_xml",
    "query_to_xml_and_xmlschema",
    "query_to_xmlschema",
    "cursor_to_xml",
    "table_to_xml",
    "schema_to_xml",
    "database_to_xml",
    "ts_stat",
    "sleep",
    "benchmark",
    "get_lock",
    "release_lock",
    "getfile",
    "system",
    "read_csv",
    "read_csv_auto",
    "read_parquet",
    "read_json",
    "read_json_auto",
    "read_text",
    "read_blob",
    "glob",
    "parquet_scan",
    "read_ndjson",
    "read_ndjson_auto",
    "read_ndjson_objects",
    "read_json_objects",
    "read_json_objects_auto",
    "sniff_csv",
    "getenv",
    "query",
    "query_table",
    "sqlite_scan",
    "postgres_query",
    "postgres_scan",
    "mysql_query",
    "mysql_scan",
    "url",
    "file",
    "remote",
    "s3",
    "executable",
    "ts_rewrite",
    "release_all_locks",
];
/// Words that end a statement or begin another one in a database where no `;` is needed, and that
/// are an alias or a name to the parser here.
const WORDS: &[&str] = &[
    "exec",
    "execute",
    "shutdown",
    "waitfor",
    "reconfigure",
    "checkpoint",
    "kill",
    "dbcc",
    "backup",
    "restore",
    "commit",
    "rollback",
    "revert",
    "use",
    "declare",
    "grant",
    "revoke",
    "deny",
    "merge",
    "bulk",
    "raiserror",
    "goto",
];
/// Ends of file names that DuckDB reads in the place of a table, quoted or not.
const FILES: &[&str] = &[
    "csv", "tsv", "txt", "json", "jsonl", "ndjson", "parquet", "xlsx", "gz", "zst", "db", "duckdb",
];
/// And those that begin so.
const PREFIXES: &[&str] = &[
    "pg_", "dblink", "lo_", "xp_", "sp_", "utl_", "dbms_", "http", "read_", "parquet_",
];
/// Of these, what only tells about the database.
const HARMLESS: &[&str] = &[
    "pg_typeof",
    "pg_size_pretty",
    "pg_table_size",
    "pg_relation_size",
    "pg_total_relation_size",
    "pg_get_viewdef",
    "pg_get_constraintdef",
    "pg_get_indexdef",
];

/// What the statements in a text do, or `None` where that cannot be told.
pub(crate) fn classes(text: &str) -> Option<BTreeSet<SqlClass>> {
    let ambiguous = ["--", "/*", "*/", "#", "\\", "$$", "`", "\0", "[", "|>"];
    if text.len() > LONGEST
        || ambiguous.iter().any(|mark| text.contains(mark))
        || dollar_quote(text)
    {
        return None;
    }
    if !crate::findings(text).is_empty() {
        return None;
    }
    let mut found = of_words(&outside_of_quotes(text)?)?;
    let parsed = Parser::new(&GenericDialect {})
        .with_recursion_limit(40)
        .try_with_sql(text)
        .ok()?
        .parse_statements()
        .ok()?;
    if parsed.is_empty() {
        return None;
    }
    for statement in &parsed {
        let mut reader = StatementReader::default();
        reader.statement(statement);
        // Statements within statements, and what expressions call.
        if reader.unknown || Visit::visit(statement, &mut reader).is_break() {
            return None;
        }
        if visit_expressions(statement, harmful).is_break() {
            return None;
        }
        found.extend(reader.found);
    }
    Some(found)
}

/// `$tag$ ... $tag$` is a string in PostgreSQL. `$1` is a parameter.
fn dollar_quote(text: &str) -> bool {
    let mut after = text.split('$').skip(1);
    after.any(|rest| rest.starts_with(|c: char| c.is_alphabetic() || c == '_'))
}

/// The text with strings and quoted names left out; `None` where a quote follows a letter or the
/// like: `q'(`, `r'''` and `U&'` end a string elsewhere in some databases.
fn outside_of_quotes(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut before = ' ';
    let mut within = None;
    for c in text.chars() {
        match within {
            Some(quote) if c == quote => within = None,
            Some(_) => {}
            None if matches!(c, '\'' | '"') => {
                if before.is_alphanumeric() || matches!(before, '_' | '&' | '@' | '$') {
                    return None;
                }
                within = Some(c);
                out.push(' ');
            }
            None => out.push(c),
        }
        before = c;
    }
    Some(out)
}

/// What the words of a text could do in a database that needs no `;` between statements; `None`
/// where that is none of the classes.
fn of_words(text: &str) -> Option<BTreeSet<SqlClass>> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '$' || c == '@';
    let mut found = BTreeSet::new();
    for word in text.split(|c| !is_word(c)) {
        let word = word.to_ascii_lowercase();
        let class = match word.as_str() {
            "insert" => SqlClass::Insert,
            "update" => SqlClass::Update,
            "delete" | "truncate" => SqlClass::Delete,
            "create" | "alter" | "drop" => SqlClass::Schema,
            word if WORDS.contains(&word) => return None,
            _ => continue,
        };
        found.insert(class);
    }
    Some(found)
}

fn harmful(expression: &Expr) -> ControlFlow<()> {
    match expression {
        Expr::Function(function) if is_harmful(&function.name) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    }
}

/// Whether any part of a function's name is harmful: `pg_catalog.x` is refused as `x.pg_sleep` is.
fn is_harmful(name: &ObjectName) -> bool {
    let harmful = |part: &ObjectNamePart| {
        let Some(part) = part.as_ident() else {
            return true;
        };
        let name = part.value.to_ascii_lowercase();
        !HARMLESS.contains(&name.as_str())
            && (FUNCTIONS.contains(&name.as_str())
                || PREFIXES.iter().any(|start| name.starts_with(start)))
    };
    name.0.is_empty() || name.0.iter().any(harmful)
}

/// Whether a table is by its name a file or an address: DuckDB and others read those.
fn is_file(name: &ObjectName) -> bool {
    let quoted = |part: &ObjectNamePart| match part.as_ident() {
        Some(part) if part.quote_style.is_some() => {
            part.quote_style != Some('"') || part.value.contains(['/', ':', '.'])
        }
        Some(_) => false,
        None => true,
    };
    let ending = name.0.last().filter(|_| name.0.len() > 1);
    let ending = ending.and_then(ObjectNamePart::as_ident);
    name.0.iter().any(quoted)
        || ending.is_some_and(|ending| FILES.contains(&ending.value.to_ascii_lowercase().as_str()))
}

#[derive(Default)]
struct StatementReader {
    found: BTreeSet<SqlClass>,
    unknown: bool,
}

impl StatementReader {
    fn statement(&mut self, statement: &Statement) {
        let class = match statement {
            // What it is made of is visited.
            Statement::Query(_) => SqlClass::Read,
            Statement::Explain { statement, .. } => return self.statement(statement),
            Statement::ExplainTable { .. }
            | Statement::ShowTables { .. }
            | Statement::ShowColumns { .. }
            | Statement::ShowDatabases { .. }
            | Statement::ShowSchemas { .. }
            | Statement::ShowCreate { .. }
            | Statement::ShowViews { .. } => SqlClass::Read,
            Statement::Insert(insert) => {
                // A row that is there is changed or replaced.
                if insert.or.is_some()
                    || insert.replace_into
                    || insert.overwrite
                    || insert.on.is_some()
                {
                    self.found.extend([SqlClass::Update, SqlClass::Delete]);
                }
                // ClickHouse writes files by functions in this place.
                if !matches!(insert.table, TableObject::TableName(_)) {
                    self.unknown = true;
                    return;
                }
                SqlClass::Insert
            }
            Statement::Update(update) => {
                if update.or.is_some() {
                    self.found.insert(SqlClass::Delete);
                }
                SqlClass::Update
            }
            Statement::Delete(_) => SqlClass::Delete,
            Statement::Truncate { .. } => SqlClass::Delete,
            Statement::CreateTable(_)
            | Statement::CreateIndex(_)
            | Statement::CreateView { .. }
            | Statement::AlterTable { .. }
            | Statement::Drop { .. } => SqlClass::Schema,
            _ => {
                self.unknown = true;
                return;
            }
        };
        self.found.insert(class);
    }
}

impl Visitor for StatementReader {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        // Locks rows.
        if !query.locks.is_empty() {
            return ControlFlow::Break(());
        }
        match body(&query.body) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }

    fn pre_visit_statement(&mut self, statement: &Statement) -> ControlFlow<()> {
        self.statement(statement);
        match self.unknown {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_relation(&mut self, name: &ObjectName) -> ControlFlow<()> {
        match is_file(name) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<()> {
        match table {
            TableFactor::Table {
                name,
                args: Some(_),
                ..
            }
            | TableFactor::Function { name, .. }
                if is_harmful(name) =>
            {
                ControlFlow::Break(())
            }
            TableFactor::Table { name, .. } if is_file(name) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

/// Whether a query only reads: no `INTO`, which makes a table or a file.
fn body(set: &SetExpr) -> bool {
    match set {
        SetExpr::Select(select) => select.into.is_none(),
        SetExpr::Query(query) => body(&query.body),
        SetExpr::SetOperation { left, right, .. } => body(left) && body(right),
        SetExpr::Values(_) | SetExpr::Table(_) => true,
        // An insert, update or delete within a query is visited as a statement of its own.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_reads() {
        for text in [
            "SELECT * FROM users WHERE name = 'a''b'",
            "select count(*), max(x) from t group by y;",
            "WITH a AS (SELECT 1) SELECT * FROM a",
            "SELECT 1 UNION SELECT 2",
            "EXPLAIN SELECT 1",
            "SELECT pg_size_pretty(pg_table_size('t'))",
            "SELECT \"a b\" FROM \"my table\" WHERE c = 'use exec; drop table t'",
            "SELECT a FROM public.users",
        ] {
            assert_eq!(classes(text), Some([SqlClass::Read].into()), "{text}");
        }
    }

    #[test]
    fn what_writes_is_told_apart() {
        for (text, class) in [
            ("INSERT INTO t VALUES (1)", SqlClass::Insert),
            ("UPDATE t SET a = 1", SqlClass::Update),
            ("DELETE FROM t", SqlClass::Delete),
            ("DROP TABLE t", SqlClass::Schema),
            ("CREATE TABLE t (a int)", SqlClass::Schema),
        ] {
            assert_eq!(
                classes(text).and_then(|found| found.last().copied()),
                Some(class),
                "{text}"
            );
        }
    }

    #[test]
    fn what_hides_a_write_is_not_a_read() {
        let read: Option<BTreeSet<SqlClass>> = Some([SqlClass::Read].into());
        for text in [
            "SELECT 1; DROP TABLE t",
            "WITH a AS (DELETE FROM t RETURNING *) SELECT * FROM a",
            "WITH a AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM a",
            "SELECT * INTO u FROM t",
            "SELECT * FROM t FOR UPDATE",
            "EXPLAIN ANALYZE DELETE FROM t",
            "SELECT load_extension('x')",
            "SELECT pg_read_file('/etc/passwd')",
            "SELECT * FROM pg_ls_dir('/')",
            "SELECT * FROM read_csv('/etc/passwd')",
            "SELECT * FROM (SELECT lo_import('/etc/passwd')) x",
            "SELECT '\\'; DROP TABLE t; --'",
            "SELECT 1 --1; DROP TABLE t",
            "SELECT /*! 1; DROP TABLE t */ 1",
            "SELECT $$a$$; DROP TABLE t",
            "SELECT $x$; DROP TABLE t; $x$",
            "PRAGMA writable_schema = ON",
            "ATTACH DATABASE 'x' AS y",
            "COPY t TO PROGRAM 'id'",
            "VACUUM INTO 'x'",
            "CALL p()",
            "not sql",
            "",
            // What one database reads as a string is none in another.
            r#"WITH x AS (SELECT q'(') DELETE FROM t WHERE b<>")') SELECT q'(" OR b<>')'"#,
            "SELECT a['] FROM t; DROP TABLE t; SELECT 1 AS [x']",
            r#"WITH x AS (SELECT "a"[']) DELETE FROM t WHERE b<>'] FROM t) SELECT a[' RETURNING 1 AS [x']"#,
            "SELECT 1 FROM t EXEC ('DROP TABLE x')",
            "SELECT 1 FROM t SHUTDOWN",
            "SELECT 1 DELETE FROM t",
            "SELECT r'''a', '''",
            "FROM t |> DROP x",
            // Functions by any part of their name, and files in the place of tables.
            "SELECT pg_catalog.pg_read_file('x')",
            "SELECT \"pg_read_file\"('x')",
            "SELECT xp_cmdshell.x('x')",
            "SELECT getenv('HOME')",
            "SELECT * FROM parquet_scan('x')",
            "SELECT * FROM read_ndjson_auto('x')",
            "SELECT * FROM url('http://x')",
            "SELECT * FROM \"/etc/passwd\"",
            "SELECT * FROM \"http://x/y\"",
            "SELECT * FROM \"x.csv\"",
            "SELECT * FROM x.csv",
        ] {
            assert_ne!(classes(text), read, "{text}");
        }
    }
    #[test]
    fn an_insert_that_replaces_changes_and_removes() {
        let only: BTreeSet<SqlClass> = [SqlClass::Insert].into();
        assert_eq!(classes("INSERT INTO t VALUES (1)"), Some(only));
        let all: BTreeSet<SqlClass> = [SqlClass::Insert, SqlClass::Update, SqlClass::Delete].into();
        for text in [
            "INSERT INTO t (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 2",
            "INSERT OR REPLACE INTO t VALUES (1)",
            "REPLACE INTO t VALUES (1)",
            "INSERT OVERWRITE t VALUES (1)",
        ] {
            let found = classes(text);
            // What the parser does not know is refused.
            assert!(
                found.is_none() || found == Some(all.clone()),
                "{text} {found:?}"
            );
        }
        let text = "INSERT INTO t (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 2";
        assert_eq!(classes(text), Some(all));
    }
}
