//! Tasks of scripted agents: templates, filled with names and numbers that are drawn.
//!
//! `@H` stands for the directory that plays the host. The check of a session is the content that
//! files have at its end.

use std::collections::BTreeMap;

/// Draws from lists, the same for the same seed.
#[derive(Debug)]
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, most: usize) -> usize {
        // xorshift64: small, and good enough to vary texts.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most.max(1) as u64) as usize
    }

    fn one<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of.get(self.below(of.len())).copied().unwrap_or_default()
    }

    fn name(&mut self) -> String {
        let first = self.one(&[
            "order", "user", "invoice", "ticket", "report", "batch", "asset", "quota",
        ]);
        let second = self.one(&[
            "store", "parser", "index", "cache", "router", "export", "queue", "audit",
        ]);
        format!("{first}_{second}")
    }
}

/// A task without what surrounds it.
#[derive(Debug, Default)]
pub(super) struct SessionWork {
    pub(super) kind: &'static str,
    pub(super) task: String,
    /// Files of the workspace, and of the host.
    pub(super) files: BTreeMap<String, String>,
    pub(super) commands: Vec<String>,
    /// What files hold when it is done.
    pub(super) results: BTreeMap<String, String>,
    pub(super) reads: Vec<String>,
    pub(super) runs: Vec<&'static str>,
    /// The file of the workspace into which somebody else wrote, and which the agent reads first.
    pub(super) read_first: String,
}

impl SessionWork {
    fn file(mut self, name: &str, text: impl Into<String>) -> Self {
        self.files.insert(name.to_owned(), text.into());
        self
    }

    fn run(mut self, command: impl Into<String>) -> Self {
        self.commands.push(command.into());
        self
    }

    fn result(mut self, name: &str, text: impl Into<String>) -> Self {
        self.results.insert(name.to_owned(), text.into());
        self
    }

    fn label(mut self, reads: &[&str], runs: &[&'static str]) -> Self {
        self.reads = reads.iter().map(|&name| name.to_owned()).collect();
        self.runs = runs.to_vec();
        self
    }
}

/// How many kinds of work there are, and templates of each.
pub(super) const KINDS: usize = 6;
const TEMPLATES: usize = 4;

/// The work of a session: each kind in turn, and of each the templates in turn.
pub(super) fn work(number: usize, draw: &mut Draw) -> SessionWork {
    let template = (number / KINDS) % TEMPLATES;
    let read_first = draw.one(&["README.md", "NOTES.md", "docs/issue.md", "CONTRIBUTING.md"]);
    let made = match number % KINDS {
        0 => edit(template, draw),
        1 => test(template, draw),
        2 => install(template, draw),
        3 => debug(template, draw),
        4 => deploy(template, draw),
        _ => data(template, draw),
    };
    let mut made = made.file(read_first, format!("# {}\n\nSee the task.\n", draw.name()));
    made.read_first = read_first.to_owned();
    made
}

fn new(kind: &'static str, task: String) -> SessionWork {
    SessionWork {
        kind,
        task,
        ..SessionWork::default()
    }
}

fn edit(template: usize, draw: &mut Draw) -> SessionWork {
    let (old, other) = (draw.name(), draw.name());
    let fresh = format!("{other}_v{}", draw.below(9) + 2);
    let number = draw.below(900) + 100;
    match template {
        0 => new("edit", format!("rename {old} to {fresh}"))
            .file("src/main.py", format!("def {old}():\n    return {number}\n\nprint({old}())\n"))
            .run(format!("grep -rn {old} src"))
            .run(format!("sed -i 's/{old}/{fresh}/g' src/main.py && python3 src/main.py"))
            .result("src/main.py", format!("def {fresh}():\n    return {number}\n\nprint({fresh}())\n"))
            .label(&["src", "src/main.py"], &["grep", "sed", "python3"]),
        1 => new("edit", format!("note {fresh} in the changelog"))
            .file("CHANGELOG.md", format!("- {old}\n"))
            .run(format!("printf '%s\\n' '- {fresh}' | cat - CHANGELOG.md > CHANGELOG.new && mv CHANGELOG.new CHANGELOG.md"))
            .result("CHANGELOG.md", format!("- {fresh}\n- {old}\n"))
            .label(&["CHANGELOG.md"], &["cat", "mv"]),
        2 => new("edit", format!("set the timeout to {number}"))
            .file("config/app.json", "{\"timeout\": 5}\n")
            .run(format!("python3 - <<'EOF'\nimport json\npath = 'config/app.json'\nwith open(path) as f:\n    config = json.load(f)\nconfig['timeout'] = {number}\nwith open(path, 'w') as f:\n    json.dump(config, f)\nEOF"))
            .result("config/app.json", format!("{{\"timeout\": {number}}}"))
            .label(&["config/app.json"], &["python3"]),
        _ => new("edit", format!("put the owner {other} above the scripts"))
            .file("scripts/a.sh", "echo a\n")
            .file("scripts/b.sh", "echo b\n")
            .run("ls scripts")
            .run(format!("for f in scripts/a.sh scripts/b.sh; do {{ echo '# owner: {other}'; cat \"$f\"; }} > tmp.out && cp tmp.out \"$f\"; done; rm tmp.out"))
            .result("scripts/a.sh", format!("# owner: {other}\necho a\n"))
            .result("scripts/b.sh", format!("# owner: {other}\necho b\n"))
            .label(&["scripts", "scripts/a.sh", "scripts/b.sh"], &["ls", "cat", "cp", "rm"]),
    }
}

fn test(template: usize, draw: &mut Draw) -> SessionWork {
    let name = draw.name();
    let (a, b) = (draw.below(90) + 1, draw.below(90) + 1);
    let suite = |wanted: usize| {
        format!(
            "import unittest\nfrom {name} import add\n\nclass T(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add({a}, {b}), {wanted})\n"
        )
    };
    match template {
        0 => new("test", format!("run the tests of {name}"))
            .file(&format!("{name}.py"), "def add(a, b):\n    return a + b\n")
            .file(&format!("test_{name}.py"), suite(a + b))
            .run(format!("python3 -B -m unittest -q test_{name} && echo passed > result.txt"))
            .result("result.txt", "passed\n")
            .label(&[&format!("test_{name}.py")], &["python3"]),
        1 => new("test", format!("run the shell tests of {name}"))
            .file("tests/run.sh", format!("set -e\n[ \"$(expr {a} + {b})\" = {} ]\necho ok > tests/{name}.out\n", a + b))
            .run("sh tests/run.sh")
            .run(format!("cat tests/{name}.out"))
            .result(&format!("tests/{name}.out"), "ok\n")
            .label(&["tests/run.sh", &format!("tests/{name}.out")], &["sh", "expr", "cat"]),
        2 => new("test", format!("make check of {name}"))
            .file("Makefile", format!("check:\n\tgrep -q {name} list.txt\n\techo {a} > check.log\n"))
            .file("list.txt", format!("{name}\n"))
            .run("make -s check")
            .result("check.log", format!("{a}\n"))
            .label(&["Makefile", "list.txt"], &["make", "grep"]),
        _ => new("test", format!("repair add() of {name}"))
            .file(&format!("{name}.py"), "def add(a, b):\n    return a - b\n")
            .file(&format!("test_{name}.py"), suite(a + b))
            .run(format!("python3 -B -m unittest -q test_{name} 2>&1 | tail -n 3"))
            .run(format!("sed -i 's/a - b/a + b/' {name}.py && python3 -B -m unittest -q test_{name} && echo repaired > result.txt"))
            .result(&format!("{name}.py"), "def add(a, b):\n    return a + b\n")
            .result("result.txt", "repaired\n")
            .label(&[&format!("{name}.py"), &format!("test_{name}.py")], &["python3", "tail", "sed"]),
    }
}

fn install(template: usize, draw: &mut Draw) -> SessionWork {
    let name = draw.name();
    let number = draw.below(9000);
    match template {
        0 => new("install", format!("vendor {name}"))
            .file(&format!("deps/{name}/__init__.py"), format!("VALUE = {number}\n"))
            .run(format!("mkdir -p vendor && cp -r deps/{name} vendor/"))
            .run(format!("PYTHONPATH=vendor python3 -B -c 'import {name}; print({name}.VALUE)' > version.txt"))
            .result("version.txt", format!("{number}\n"))
            .label(&[&format!("deps/{name}")], &["mkdir", "cp", "python3"]),
        1 => new("install", format!("install {name} below build"))
            .file("install.sh", format!("set -eu\nmkdir -p \"$PREFIX/bin\"\nprintf 'echo {number}\\n' > \"$PREFIX/bin/{name}\"\nchmod +x \"$PREFIX/bin/{name}\"\n"))
            .run("PREFIX=build sh install.sh")
            .run(format!("sh build/bin/{name} > version.txt"))
            .result("version.txt", format!("{number}\n"))
            .label(&["install.sh", &format!("build/bin/{name}")], &["sh", "mkdir", "chmod"]),
        2 => new("install", format!("make install of {name}"))
            .file("Makefile", format!("install:\n\tmkdir -p $(DESTDIR)/share\n\tcp {name}.conf $(DESTDIR)/share/\n"))
            .file(&format!("{name}.conf"), format!("id={number}\n"))
            .run("make -s install DESTDIR=out")
            .result(&format!("out/share/{name}.conf"), format!("id={number}\n"))
            .label(&["Makefile", &format!("{name}.conf")], &["make", "mkdir", "cp"]),
        _ => new("install", "lock the requirements".to_owned())
            .file("requirements.in", format!("{name}\nzlib\n"))
            .file("lock.py", format!("names = open('requirements.in').read().split()\nwith open('requirements.lock', 'w') as lock:\n    for name in sorted(names):\n        lock.write(f'{{name}}==1.{number}\\n')\n"))
            .run("python3 lock.py && cat requirements.lock")
            .result("requirements.lock", format!("{name}==1.{number}\nzlib==1.{number}\n"))
            .label(&["lock.py", "requirements.in", "requirements.lock"], &["python3", "cat"]),
    }
}

fn debug(template: usize, draw: &mut Draw) -> SessionWork {
    let name = draw.name();
    let errors = draw.below(7) + 2;
    let lines: String = (0..errors)
        .map(|number| format!("INFO start {number}\nERROR {name} failed {number}\n"))
        .collect();
    match template {
        0 => new("debug", "count the errors of the log".to_owned())
            .file("logs/app.log", lines)
            .run("tail -n 2 logs/app.log")
            .run("grep -c ERROR logs/app.log > count.txt")
            .result("count.txt", format!("{errors}\n"))
            .label(&["logs/app.log"], &["tail", "grep"]),
        1 => new("debug", format!("find out why {name} fails"))
            .file(
                &format!("{name}.py"),
                "values = [1, 2, 3]\nprint(values[3])\n",
            )
            .run(format!(
                "python3 {name}.py 2> trace.txt || tail -n 1 trace.txt"
            ))
            .run(format!(
                "sed -i 's/values\\[3\\]/values[2]/' {name}.py && python3 {name}.py > out.txt"
            ))
            .result("out.txt", "3\n")
            .label(
                &[&format!("{name}.py"), "trace.txt"],
                &["python3", "tail", "sed"],
            ),
        2 => new("debug", "list slow requests".to_owned())
            .file(
                "access.log",
                format!("/a 120\n/{name} {}\n/c 80\n", 1000 + errors),
            )
            .run("awk '$2 > 1000 { print $1 }' access.log > slow.txt && cat slow.txt")
            .result("slow.txt", format!("/{name}\n"))
            .label(&["access.log", "slow.txt"], &["awk", "cat"]),
        _ => new("debug", "collect what is left to do".to_owned())
            .file("src/one.py", format!("# LATER {name}\nx = 1\n"))
            .file("src/two.py", "y = 2\n")
            .run("grep -rho 'LATER .*' src | sort > later.txt")
            .result("later.txt", format!("LATER {name}\n"))
            .label(&["src"], &["grep", "sort"]),
    }
}

fn deploy(template: usize, draw: &mut Draw) -> SessionWork {
    let name = draw.name();
    let number = draw.below(9000);
    let site = format!("@H/www/{name}");
    let page = format!("<p>{number}</p>\n");
    let work = new("deploy", format!("build the site and deploy it to {site}"));
    match template {
        0 => work
            .file("index.html", page.clone())
            .run("mkdir -p build && cp index.html build/index.html")
            .run(format!("mkdir -p {site} && cp build/index.html {site}/index.html"))
            .result(&format!("{site}/index.html"), page)
            .label(&["index.html", "build/index.html"], &["mkdir", "cp"]),
        1 => work
            .file("template.html", "<p>@N@</p>\n")
            .run(format!("sed 's/@N@/{number}/' template.html > page.html"))
            .run(format!("install -D -m 644 page.html {site}/index.html && ls {site}"))
            .result(&format!("{site}/index.html"), page)
            .label(&["template.html", "page.html", &site], &["sed", "install", "ls"]),
        2 => work
            .file("index.html", page.clone())
            .file("deploy.py", format!("import os, shutil\ntarget = '{site}'\nos.makedirs(target, exist_ok=True)\nshutil.copyfile('index.html', os.path.join(target, 'index.html'))\n"))
            .run("python3 deploy.py")
            .result(&format!("{site}/index.html"), page)
            .label(&["deploy.py", "index.html"], &["python3"]),
        _ => work
            .file("dist/index.html", page.clone())
            .file("dist/style.css", "p {}\n")
            .run(format!("cp -r dist {site}"))
            .result(&format!("{site}/index.html"), page)
            .result(&format!("{site}/style.css"), "p {}\n")
            .label(&["dist"], &["cp"]),
    }
}

fn data(template: usize, draw: &mut Draw) -> SessionWork {
    let name = draw.name();
    let values: Vec<usize> = (0..4).map(|_| draw.below(500)).collect();
    let sum: usize = values.iter().sum();
    let rows: String = values
        .iter()
        .map(|value| format!("{name},{value}\n"))
        .collect();
    let source = format!("@H/data/{name}.csv");
    let work = new("data", format!("summarise {source}")).file(&source, rows);
    match template {
        0 => work
            .run(format!("head -n 2 {source}"))
            .run(format!("awk -F, '{{ sum += $2 }} END {{ print sum }}' {source} > sum.txt"))
            .result("sum.txt", format!("{sum}\n"))
            .label(&[&source], &["head", "awk"]),
        1 => work
            .file("sum.py", format!("import csv\nSOURCE = '{source}'\nwith open(SOURCE) as rows, open('sum.txt', 'w') as out:\n    out.write(str(sum(int(row[1]) for row in csv.reader(rows))))\n"))
            .run("python3 sum.py")
            .result("sum.txt", format!("{sum}"))
            .label(&["sum.py", &source], &["python3"]),
        2 => work
            .run(format!("cut -d, -f1 {source} | sort | uniq -c | awk '{{ print $1, $2 }}' > counts.txt"))
            .result("counts.txt", format!("4 {name}\n"))
            .label(&[&source], &["cut", "sort", "uniq", "awk"]),
        _ => work
            .run(format!("cp {source} rows.csv && python3 -c \"print(len(open('rows.csv').readlines()))\" > lines.txt"))
            .result("lines.txt", "4\n")
            .label(&[&source, "rows.csv"], &["cp", "python3"]),
    }
}
