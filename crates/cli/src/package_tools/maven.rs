//! Maven.

use super::{ToolAnswer, UserDirectories, ask, tool_path};
use crate::paths;
use std::path::PathBuf;

/// In the cage: the directory of Maven's global settings.
const DIRECTORY: &str = "/run/ironcage/maven";

pub(super) fn maven(dirs: &UserDirectories<'_>) -> ToolAnswer {
    let mut answer = ToolAnswer::default();
    let Some(program) = tool_path(dirs.workspace, "mvn") else {
        return answer;
    };
    let real = std::fs::canonicalize(program).ok();
    let home = real.and_then(|real| Some(real.parent()?.parent()?.to_owned()));
    let own = paths::text(&dirs.home.join(".m2/settings.xml")).unwrap_or_default();
    let (mirrors, all) = read_mirrors(&own, &mut answer);
    if !mirrors.is_empty() {
        let file = format!("<settings>\n<mirrors>\n{mirrors}</mirrors>\n</settings>\n");
        answer
            .files
            .push((PathBuf::from(DIRECTORY).join("settings.xml"), file));
        answer.set("MAVEN_OPTS", format!("-Dmaven.conf={DIRECTORY}"));
    }
    if !all && let Some(home) = home {
        for url in default_repository(dirs, &home.join("lib")) {
            answer.take("Maven itself", &url);
        }
    }
    answer
}

/// The mirrors of a settings file, written again, and whether one stands for the default
/// repository.
fn read_mirrors(text: &str, answer: &mut ToolAnswer) -> (String, bool) {
    let mut kept = String::new();
    let mut replaces = false;
    let text = without_comments(text);
    let mut rest = text.as_str();
    while let Some((mirror, after)) = element(rest, "mirror") {
        rest = after;
        let value = |name: &str| element(mirror, name).map(|(value, _)| value.trim());
        let (Some(id), Some(of), Some(url)) = (value("id"), value("mirrorOf"), value("url")) else {
            continue;
        };
        let url = answer.take(&format!("Maven's mirror {id}"), url);
        replaces |= of
            .split(',')
            .any(|of| matches!(of.trim(), "*" | "central" | "external:*"));
        kept.push_str(&format!(
            "<mirror><id>{id}</id><mirrorOf>{of}</mirrorOf><url>{url}</url></mirror>\n"
        ));
    }
    (kept, replaces)
}

fn without_comments(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("<!--") {
        kept.push_str(before);
        rest = after.split_once("-->").map_or("", |(_, after)| after);
    }
    kept.push_str(rest);
    kept
}

/// The content of the first element of a name, and what follows it.
fn element<'a>(text: &'a str, name: &str) -> Option<(&'a str, &'a str)> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>"))
}

/// The repository that Maven has without settings is only in its own library.
fn default_repository(dirs: &UserDirectories<'_>, libraries: &std::path::Path) -> Vec<String> {
    const PROGRAM: &str = "import glob, re, sys, zipfile\n\
        for path in glob.glob(glob.escape(sys.argv[1]) + '/maven-model-builder*.jar'):\n\
        \x20   text = zipfile.ZipFile(path).read('org/apache/maven/model/pom-4.0.0.xml').decode()\n\
        \x20   print('\\n'.join(sorted(set(re.findall('<url>(https?://[^<]*)</url>', text)))))\n\
        \x20   break";
    let Some(libraries) = libraries.to_str() else {
        return Vec::new();
    };
    let own = ask(dirs, "python3", &["-I", "-c", PROGRAM, libraries]);
    own.unwrap_or_default().lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_are_kept_without_passwords() {
        let mut answer = ToolAnswer::default();
        let (kept, replaces) = read_mirrors(
            "<settings><!-- <mirror><id>x</id></mirror> --><servers><server><password>hidden</password></server></servers><mirrors><mirror>\n<id>own</id><mirrorOf>central,other</mirrorOf>\n<url>https://ann:pw@mirror.test/m2</url></mirror></mirrors></settings>",
            &mut answer,
        );
        assert!(
            replaces && kept.contains("<url>https://mirror.test/m2</url>"),
            "{kept}"
        );
        assert!(!kept.contains("hidden") && !kept.contains("pw"), "{kept}");
        assert_eq!(answer.urls.len(), 1);
        let (kept, replaces) = read_mirrors("<settings/>", &mut answer);
        assert!(kept.is_empty() && !replaces);
    }
}
