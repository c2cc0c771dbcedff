//! The list of what the host would execute: every tool under every name that it documents.
#![forbid(unsafe_code)]
#![allow(clippy::expect_used)]

use ironcage_catalog::{Class, executed, protected};
use std::ffi::OsStr;
use std::path::Path;

fn class(path: &str) -> Option<Class> {
    let parts: Vec<&OsStr> = Path::new(path).iter().collect();
    let found = executed::found_in(&parts);
    found.into_iter().map(|(listed, _)| listed.class).max()
}

fn is_listed(name: &str) -> bool {
    let mut names = executed::NAMES.iter();
    names.any(|listed| listed.path.eq_ignore_ascii_case(name)) || class(name).is_some()
}

/// The other names that a name has by the extensions that tools take for one another.
fn siblings(name: &str) -> Vec<String> {
    let family = |family: &&&[&str]| {
        let extension = name.rsplit_once('.').map(|(_, extension)| extension);
        extension.is_some_and(|extension| family.contains(&extension))
    };
    let Some(family) = executed::FAMILIES.iter().find(family) else {
        return Vec::new();
    };
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    family
        .iter()
        .map(|member| format!("{stem}.{member}"))
        .filter(|sibling| sibling != name)
        .collect()
}

#[test]
fn every_extension_of_a_family_is_listed_or_is_an_exception() {
    let excepted = |name: &str| {
        let mut exceptions = executed::EXCEPTIONS.iter();
        exceptions.any(|exception| exception.path == name)
    };
    for listed in executed::NAMES {
        for sibling in siblings(listed.path) {
            assert!(
                is_listed(&sibling) || excepted(&sibling),
                "{} is listed; list {sibling} too, or say in an [[exception]] why not",
                listed.path
            );
        }
    }
    // An exception from nothing is a mistake.
    for exception in executed::EXCEPTIONS {
        let siblings = siblings(exception.path);
        assert!(
            siblings.iter().any(|sibling| is_listed(sibling)),
            "{} is a variant of nothing",
            exception.path
        );
    }
}

/// What the tools' own documentation names, written down apart from the rules that generate it.
const WITHHELD: &[(&str, &[&str])] = &[
    (
        "lefthook",
        &[
            "lefthook.yml",
            ".lefthook.yml",
            ".config/lefthook.yml",
            "lefthook.yaml",
            ".lefthook.yaml",
            ".config/lefthook.yaml",
            "lefthook.toml",
            ".lefthook.toml",
            ".config/lefthook.toml",
            "lefthook.json",
            ".lefthook.json",
            ".config/lefthook.json",
            "lefthook.jsonc",
            ".config/lefthook.jsonc",
            "lefthook-local.yml",
            ".lefthook-local.toml",
            ".config/lefthook-local.json",
            ".lefthook/pre-commit/x.sh",
            ".lefthook-local/pre-commit/x.sh",
        ],
    ),
    (
        "mise",
        &[
            "mise.toml",
            ".mise.toml",
            "mise.local.toml",
            ".mise.local.toml",
            "mise.staging.toml",
            ".mise.staging.local.toml",
            "mise/config.toml",
            "mise/config.local.toml",
            ".mise/config.toml",
            ".config/mise.toml",
            ".config/mise/config.toml",
            ".config/mise/conf.d/x.toml",
            "mise-tasks/x",
            ".mise-tasks/x",
            ".mise/tasks/x",
            ".config/mise/tasks/x",
            "mise/tasks/x",
            ".rtx.toml",
        ],
    ),
    (
        "hooks",
        &[
            ".husky/pre-commit",
            ".huskyrc",
            ".huskyrc.json",
            ".huskyrc.js",
            ".pre-commit-config.yaml",
            ".overcommit.yml",
            ".simple-git-hooks.cjs",
            "simple-git-hooks.json",
            "captainhook.json",
            "grumphp.yml",
            ".githooks/pre-push",
            "hk.pkl",
        ],
    ),
    (
        "opencode",
        &[
            "opencode.json",
            "opencode.jsonc",
            ".opencode/plugin/x.ts",
            ".opencode.json",
        ],
    ),
    (
        "agents",
        &[
            ".claude/settings.json",
            ".cursor/mcp.json",
            ".codex/config.toml",
            ".gemini/settings.json",
            ".aider.conf.yml",
            ".continue/config.yaml",
            ".windsurf/rules/x",
            ".windsurfrules",
            ".cursorrules",
            ".mcp.json",
            ".roo/mcp.json",
            ".kiro/hooks/x",
            ".amp/settings.json",
            "crush.json",
            ".crush.json",
            ".goosehints",
            ".junie/guidelines.md",
            ".github/hooks/x.json",
            ".agent/rules/x.md",
            ".devin/x",
            ".pi/settings.json",
            ".lingma/x",
        ],
    ),
    (
        "servers of git extensions",
        &[".lfsconfig", ".gitreview", ".arcconfig"],
    ),
    (
        "package managers",
        &[
            ".npmrc",
            "bunfig.toml",
            ".yarnrc",
            ".yarnrc.yml",
            ".yarn/plugins/x.cjs",
            ".yarn/releases/yarn.cjs",
            ".yarn/sdks/typescript/bin/tsserver",
            ".pnp.cjs",
            ".pnp.loader.mjs",
            ".pnpmfile.cjs",
            ".pnpmfile.mjs",
            "pnpmfile.js",
            ".bundle/config",
            "nuget.config",
            "NuGet.Config",
        ],
    ),
    (
        "editors",
        &[
            ".vscode/tasks.json",
            "x.code-workspace",
            ".idea/workspace.xml",
            ".run/x.run.xml",
            ".fleet/run.json",
            ".zed/tasks.json",
            ".helix/languages.toml",
            ".nvim.lua",
            ".nvimrc",
            ".exrc",
            ".vimrc",
            ".lvimrc",
            ".dir-locals.el",
            ".dir-locals-2.el",
            "x.sublime-project",
            ".devcontainer/devcontainer.json",
            ".devcontainer.json",
            ".bsp/sbt.json",
            "hie.yaml",
            ".merlin",
            ".luarc.json",
            ".luarc.jsonc",
            "rust-analyzer.toml",
            "omnisharp.json",
        ],
    ),
    (
        "interpreters and build programs",
        &[
            "sitecustomize.py",
            "sitecustomize/__init__.py",
            "sitecustomize.cpython-312-x86_64-linux-gnu.so",
            "usercustomize.py",
            "x.pth",
            "pyvenv.cfg",
            ".irbrc",
            ".pryrc",
            ".ghci",
            ".iex.exs",
            ".erlang",
            ".Rprofile",
            ".RData",
            ".gdbinit",
            ".cargo/config.toml",
            ".cargo/config",
            "gradle/wrapper/gradle-wrapper.jar",
            ".mvn/extensions.xml",
            ".mvn/jvm.config",
            ".mvn/maven.config",
            ".jvmopts",
            ".sbtopts",
            "tools/bazel",
            ".user.ini",
            ".terraform/providers/x",
            "jupyter_notebook_config.py",
        ],
    ),
    (
        "shell",
        &[
            ".envrc",
            ".env",
            ".env.local",
            ".direnv/x",
            ".devenv/profile/x",
            ".bashrc",
            ".zshrc",
            ".config/fish/config.fish",
            ".config/systemd/user/x.service",
            ".local/bin/x",
        ],
    ),
];

const FLAGGED: &[(&str, &[&str])] = &[
    (
        "bots and pipelines",
        &[
            ".github/dependabot.yml",
            "renovate.json5",
            ".renovaterc",
            ".coderabbit.yaml",
            ".pr_agent.toml",
            ".build.yml",
            ".onedev-buildspec.yml",
            "codemagic.yaml",
            "bitrise.yml",
            ".tangled/workflows/x.yml",
        ],
    ),
    (
        "programs and plugins of tools",
        &[
            "knexfile.ts",
            "ormconfig.js",
            "plopfile.mjs",
            "codegen.ts",
            "knip.ts",
            "knip.jsonc",
            "ember-cli-build.js",
            ".ember-cli",
            ".sequelizerc",
            ".versionrc.cjs",
            ".textlintrc.js",
            ".markdownlint.cjs",
            "dprint.json",
            "firebase.json",
            ".moon/tasks.yml",
            "moon.yml",
            "phpcs.xml.dist",
            ".phpcs.xml",
            "infection.json5",
            "Emakefile",
            ".coveragerc",
            "BUILD",
            "BUILD.bazel",
            "rules/x.bzl",
            "local.properties",
            "foundry.toml",
            ".clangd",
            ".ycm_extra_conf.py",
            "compile_commands.json",
            "x.desktop",
            "modd.conf",
            "release.toml",
            ".tflint.hcl",
            "dub.sdl",
            "wails.json",
            ".bowerrc",
            "src-tauri/tauri.conf.json",
            "tauri.linux.conf.json",
            "buf.gen.yaml",
            "sqlc.yml",
            "vcpkg-configuration.json",
            "Cartfile",
            ".detoxrc.js",
        ],
    ),
    (
        "just",
        &["justfile", "Justfile", ".justfile", "JUSTFILE", "mod.just"],
    ),
    (
        "task",
        &[
            "Taskfile.yml",
            "taskfile.yml",
            "Taskfile.yaml",
            "taskfile.yaml",
            "Taskfile.dist.yml",
            "taskfile.dist.yaml",
            ".taskrc.yml",
        ],
    ),
    (
        "make and cmake",
        &[
            "GNUmakefile",
            "makefile",
            "Makefile",
            "rules.mk",
            "Makefile.inc",
            "CMakeLists.txt",
            "x.cmake",
            "CMakePresets.json",
            "CMakeUserPresets.json",
        ],
    ),
    (
        "compose and images",
        &[
            "compose.yaml",
            "compose.yml",
            "docker-compose.yaml",
            "docker-compose.yml",
            "compose.override.yaml",
            "compose.override.yml",
            "docker-compose.override.yml",
            "docker-compose.override.yaml",
            "docker-bake.hcl",
            "docker-bake.json",
            "docker-bake.override.hcl",
            "Dockerfile",
            "Dockerfile.dev",
            "api.Dockerfile",
            "Containerfile",
        ],
    ),
    (
        "vite and others with a program for settings",
        &[
            "vite.config.js",
            "vite.config.mjs",
            "vite.config.ts",
            "vite.config.cjs",
            "vite.config.mts",
            "vite.config.cts",
            "vitest.config.mts",
            "vitest.workspace.ts",
            "webpack.config.cjs",
            "rollup.config.mjs",
            "esbuild.config.mjs",
            "babel.config.json",
            "postcss.config.cts",
            "tailwind.config.ts",
            "eslint.config.mts",
            "stylelint.config.mjs",
            "jest.config.json",
            "ava.config.cjs",
            "karma.conf.js",
            "playwright.config.ts",
            "cypress.config.cjs",
            "cypress.json",
            ".storybook/main.ts",
            "next.config.mjs",
            "nuxt.config.ts",
            "astro.config.mts",
            "svelte.config.js",
            "gulpfile.mjs",
            "gulpfile.babel.js",
            "gulpfile.js/index.js",
            "Gruntfile.cjs",
            "Gruntfile.coffee",
        ],
    ),
    (
        "prettier",
        &[
            ".prettierrc",
            ".prettierrc.json",
            ".prettierrc.yml",
            ".prettierrc.yaml",
            ".prettierrc.json5",
            ".prettierrc.js",
            ".prettierrc.ts",
            ".prettierrc.mjs",
            ".prettierrc.mts",
            ".prettierrc.cjs",
            ".prettierrc.cts",
            ".prettierrc.toml",
            "prettier.config.mts",
            "prettier.config.cts",
        ],
    ),
    (
        "other settings of JavaScript tools",
        &[
            ".eslintrc",
            ".eslintrc.js",
            ".eslintrc.cjs",
            ".eslintrc.yaml",
            ".eslintrc.yml",
            ".eslintrc.json",
            ".stylelintrc.yaml",
            ".config/stylelintrc.json",
            ".babelrc",
            ".babelrc.cts",
            ".mocharc.jsonc",
            ".lintstagedrc.mjs",
            "lint-staged.config.ts",
            ".commitlintrc.yml",
            "package.json",
            "package.json5",
            "pnpm-workspace.yaml",
            "turbo.json",
            "turbo.jsonc",
            "nx.json",
            "lerna.json",
            "deno.json",
            "deno.jsonc",
        ],
    ),
    (
        "python",
        &[
            "conftest.py",
            "pytest.ini",
            ".pytest.ini",
            "tox.ini",
            "tox.toml",
            "noxfile.py",
            "setup.py",
            "setup.cfg",
            "pyproject.toml",
            "fabfile.py",
            "invoke.yaml",
            "Pipfile",
            ".pylintrc",
            "mypy.ini",
        ],
    ),
    (
        "ruby",
        &[
            "Gemfile",
            "gems.rb",
            "Rakefile",
            "rakefile",
            "rakefile.rb",
            "lib/tasks/x.rake",
            ".rspec",
            "Guardfile",
            ".rubocop.yml",
            ".config/.rubocop.yml",
            ".config/rubocop/config.yml",
        ],
    ),
    (
        "rust, go, jvm, elixir, haskell, php",
        &[
            "build.rs",
            "Cargo.toml",
            "rust-toolchain",
            "rust-toolchain.toml",
            "magefile.go",
            ".golangci.yml",
            ".golangci.toml",
            "settings.gradle",
            "settings.gradle.kts",
            "init.gradle",
            "build.gradle.kts",
            "gradle.properties",
            "gradlew",
            "mvnw",
            "pom.xml",
            "build.sbt",
            "WORKSPACE",
            "sub/MODULE.bazel",
            "project/plugins.sbt",
            "project/build.properties",
            "mix.exs",
            ".formatter.exs",
            "Setup.hs",
            "stack.yaml",
            "cabal.project.local",
            "composer.json",
        ],
    ),
    (
        "nix",
        &[
            "flake.nix",
            "shell.nix",
            "default.nix",
            "devenv.nix",
            "devenv.yaml",
            "devenv.local.nix",
            "devbox.json",
            ".tool-versions",
        ],
    ),
    (
        "continuous integration",
        &[
            ".github/workflows/x.yml",
            ".gitea/workflows/x.yml",
            ".forgejo/workflows/x.yml",
            ".forgejo/actions/x/action.yml",
            ".gitlab-ci.yml",
            ".circleci/config.yml",
            "Jenkinsfile",
            "azure-pipelines.yml",
            "azure-pipelines.yaml",
            ".buildkite/pipeline.yml",
            ".drone.yml",
            ".drone.star",
            ".woodpecker.yaml",
            ".woodpecker/x.yml",
            ".travis.yml",
            "bitbucket-pipelines.yml",
            ".cirrus.yml",
        ],
    ),
    (
        "documentation, and code in settings",
        &[
            "book.toml",
            "mkdocs.yml",
            "mkdocs.local.yaml",
            "antora-playbook.yml",
            "_plugins/x.rb",
            "docs/conf.py",
            "wp-cli.yml",
            ".kitchen.yml",
            "nextflow.config",
            ".scalafix.conf",
            ".changeset/config.json",
            ".xcode.env.local",
            ".ansible-lint",
            ".cspell.json",
            ".whateverrc.mjs",
            ".alexrc.js",
        ],
    ),
    (
        "instructions",
        &[
            "AGENTS.md",
            "CLAUDE.md",
            "CLAUDE.local.md",
            "GEMINI.md",
            "AGENT.md",
            ".github/copilot-instructions.md",
            ".github/instructions/x.md",
        ],
    ),
];

#[test]
fn every_documented_name_of_a_tool_is_listed_at_any_depth() {
    for (wanted, tools) in [(Class::Withheld, WITHHELD), (Class::Flagged, FLAGGED)] {
        for (tool, names) in tools {
            for name in *names {
                for path in [(*name).to_owned(), format!("a/b/{name}")] {
                    assert_eq!(class(&path), Some(wanted), "{tool}: {path}");
                }
            }
        }
    }
}

/// What agents write all day is neither withheld nor flagged.
#[test]
fn ordinary_files_are_not_listed() {
    for path in [
        "src/main.rs",
        "src/lib/config.ts",
        "src/compose.ts",
        "src/compose.rs",
        "app/tasks.py",
        "app/models/mise.py",
        "lib/venv/__init__.py",
        "src/prettier.ts",
        "src/settings.json",
        "config/app.yml",
        "docs/README.md",
        "docs/agents/overview.md",
        "go.mod",
        "main.go",
        "index.html",
        "tsconfig.json",
        "package-lock.json",
        "src/bin/tool.rs",
        "crates/workspace/src/lib.rs",
        "src/app.config.json",
        "tests/test_x.py",
        "main.tf",
        ".gitignore",
        ".editorconfig",
        ".config/other",
        "pipelines/etl.py",
        "build/output.txt",
    ] {
        assert_eq!(class(path), None, "{path}");
    }
}

#[test]
fn a_tool_that_is_protected_under_one_name_is_protected_under_all() {
    let has = |name: &str| protected::ENTRIES.iter().any(|entry| entry.path == name);
    for name in [
        "lefthook.yml",
        "lefthook.yaml",
        ".config/lefthook-local.toml",
        "opencode.jsonc",
        ".mise.toml",
        ".config/mise.toml",
        ".pnpmfile.mjs",
        ".pre-commit-config.yml",
    ] {
        assert!(has(name), "{name}");
    }
    // A name with a star cannot be mounted over, and another tool's is another matter.
    assert!(!has("mise.*.toml") && !has("Makefile") && !has(".terraform.lock.hcl"));
    let mut names: Vec<&str> = protected::ENTRIES.iter().map(|entry| entry.path).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}
