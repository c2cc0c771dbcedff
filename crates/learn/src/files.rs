//! Which files and directories cover what was used, without more than warranted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// From so many entries of one directory on, the directory is given.
const SEVERAL: usize = 3;

/// Paths that were used below one that the bound gives.
#[derive(Debug, Clone, Default)]
pub(crate) struct Used {
    /// Each path, with what it was used by.
    paths: BTreeMap<PathBuf, BTreeSet<String>>,
    /// Paths that were only looked at: on the way to others that says nothing.
    looked: BTreeMap<PathBuf, String>,
}

/// One path to give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cover {
    pub(crate) path: PathBuf,
    /// How many of the used ones lie in it.
    pub(crate) uses: usize,
    pub(crate) programs: BTreeSet<String>,
}

impl Used {
    pub(crate) fn add(&mut self, path: PathBuf, program: &str) {
        let programs = self.paths.entry(path).or_default();
        if programs.len() < SEVERAL {
            programs.insert(program.to_owned());
        }
    }

    pub(crate) fn look(&mut self, path: PathBuf, program: &str) {
        self.looked
            .entry(path)
            .or_insert_with(|| program.to_owned());
    }

    /// What was looked at on the way to nothing was used for itself.
    fn with_looks(&self) -> Used {
        let mut used = self.clone();
        // The deepest first: the way to one that counts does not.
        for (path, program) in self.looked.iter().rev() {
            let mut known = used.paths.keys();
            if !known.any(|known| known.starts_with(path)) {
                used.add(path.clone(), program);
            }
        }
        used
    }

    /// The paths that cover all that was used: several of one directory become that directory,
    /// as far up as `top`. A directory in which a sensitive file lies that nothing used is never
    /// given for others: `is_sensitive` finds those.
    pub(crate) fn cover(
        &self,
        top: &Path,
        is_sensitive: &dyn Fn(&Path) -> Vec<PathBuf>,
    ) -> Vec<Cover> {
        let used = self.with_looks();
        let mut chosen: BTreeSet<PathBuf> = used.paths.keys().cloned().collect();
        drop_covered(&mut chosen);
        let mut kept_apart: BTreeSet<PathBuf> = BTreeSet::new();
        loop {
            let mut by_parent: BTreeMap<&Path, usize> = BTreeMap::new();
            for path in &chosen {
                if let Some(parent) = path.parent().filter(|parent| parent.starts_with(top)) {
                    *by_parent.entry(parent).or_default() += 1;
                }
            }
            // The deepest first: what lies close together is joined before what does not.
            let several = by_parent
                .iter()
                .filter(|(parent, count)| **count >= SEVERAL && !kept_apart.contains(**parent));
            let deepest = several.max_by_key(|(parent, _)| parent.components().count());
            let Some(parent) = deepest.map(|(parent, _)| parent.to_path_buf()) else {
                break;
            };
            let unused = |path: &PathBuf| !used.paths.contains_key(path);
            if is_sensitive(&parent).iter().any(unused) {
                kept_apart.insert(parent);
                continue;
            }
            chosen.insert(parent);
            drop_covered(&mut chosen);
        }
        chosen.into_iter().map(|path| used.told(path)).collect()
    }

    fn told(&self, path: PathBuf) -> Cover {
        let mut cover = Cover {
            path,
            uses: 0,
            programs: BTreeSet::new(),
        };
        for (used, programs) in &self.paths {
            if used.starts_with(&cover.path) {
                cover.uses += 1;
                cover.programs.extend(programs.iter().cloned());
            }
        }
        cover
    }
}

/// Without what lies in another one.
fn drop_covered(paths: &mut BTreeSet<PathBuf>) {
    let all = paths.clone();
    paths.retain(|path| {
        let mut above = path.ancestors().skip(1);
        !above.any(|above| all.contains(above))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cover(top: &str, paths: &[&str]) -> Vec<String> {
        let mut used = Used::default();
        for path in paths {
            used.add(path.into(), "cat");
        }
        let covers = used.cover(Path::new(top), &|_| Vec::new());
        let told = covers.into_iter().map(|cover| cover.path);
        told.map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn few_files_stay_files_and_several_of_a_directory_become_it() {
        assert_eq!(cover("/d", &["/d/a/1", "/d/a/2"]), ["/d/a/1", "/d/a/2"]);
        assert_eq!(cover("/d", &["/d/a/1", "/d/a/2", "/d/a/3"]), ["/d/a"]);
        assert_eq!(
            cover("/d", &["/d/a/1", "/d/a/2", "/d/a/3", "/d/b/1"]),
            ["/d/a", "/d/b/1"]
        );
    }

    #[test]
    fn what_was_looked_at_on_the_way_to_a_file_is_not_given() {
        let mut used = Used::default();
        used.add("/d/a/1".into(), "cat");
        for path in ["/d", "/d/a", "/d/a/1", "/d/b", "/d/b/2"] {
            used.look(path.into(), "realpath");
        }
        let covers = used.cover(Path::new("/d"), &|_| Vec::new());
        let paths: Vec<_> = covers.iter().map(|cover| &cover.path).collect();
        assert_eq!(paths, [Path::new("/d/a/1"), Path::new("/d/b/2")]);
    }

    #[test]
    fn a_directory_with_a_sensitive_file_that_nothing_used_is_not_given() {
        let files = ["/d/a/1", "/d/a/2", "/d/a/3", "/d/b/1", "/d/b/2", "/d/b/3"];
        let mut used = Used::default();
        for path in files {
            used.add(path.into(), "cat");
        }
        let found = |directory: &Path| match directory.ends_with("a") {
            true => vec![directory.join(".env")],
            false => Vec::new(),
        };
        let covers = used.cover(Path::new("/d"), &found);
        let paths: Vec<_> = covers.iter().map(|cover| cover.path.clone()).collect();
        assert_eq!(
            paths,
            ["/d/a/1", "/d/a/2", "/d/a/3", "/d/b"].map(PathBuf::from)
        );
        // Used itself, it keeps nothing apart.
        used.add("/d/a/.env".into(), "cat");
        let covers = used.cover(Path::new("/d"), &found);
        let paths: Vec<_> = covers.iter().map(|cover| cover.path.clone()).collect();
        assert_eq!(paths, ["/d/a", "/d/b"].map(PathBuf::from));
    }

    #[test]
    fn what_lies_in_something_given_is_not_given_again() {
        assert_eq!(cover("/d", &["/d/a", "/d/a/1"]), ["/d/a"]);
    }

    #[test]
    fn nothing_above_the_bound_is_given_however_much_is_used() {
        let many = ["/d/a/1", "/d/b/1", "/d/c/1", "/d/e/1"];
        assert_eq!(cover("/d", &many), many);
        let many = ["/d/1", "/d/2", "/d/3", "/d/4"];
        assert_eq!(cover("/d", &many), ["/d"]);
        assert_eq!(cover("/d/1", &["/d/1"]), ["/d/1"]);
    }
}
