//! ssh inside has settings of the cage's own, which it takes, and nothing of the user's.
#![forbid(unsafe_code)]

use ironcage_tests::{both, skip};
use std::path::Path;

both! {
    fn ssh_takes_the_cages_settings_and_none_of_the_users(stage) {
        if !Path::new("/usr/bin/ssh").exists() {
            skip("needs openssh-client");
            return;
        }
        stage.write(stage.home().join(".ssh/config"), "Host *\n  User canary\n  ProxyCommand echo canary\n");
        stage.write(stage.home().join(".ssh/known_hosts"), "canary.example ssh-ed25519 AAAA\n");
        stage.write(stage.home().join(".ssh/id_ed25519"), "canary");
        let settings = stage.sh("ssh -G git.example && ls -A ~/.ssh /root/.ssh").stdout();
        assert!(settings.contains("\nstricthostkeychecking true\n"), "{settings}");
        assert!(settings.contains("\nglobalknownhostsfile /etc/ssh/ssh_known_hosts\n"), "{settings}");
        assert!(!settings.contains("canary"), "{settings}");
        let ran = stage.sh("stat -c '%u %a' /etc/ssh/ssh_config /etc/ssh/ssh_known_hosts && cat /etc/ssh/ssh_known_hosts").ok();
        assert!(ran.stdout().starts_with("1000 644\n1000 644\n#"), "{ran:?}");
        assert!(!ran.stdout().contains("canary"), "{ran:?}");
        // ssh refuses settings that are somebody else's, also by way of `Include`.
        stage.sh("echo 'Include /etc/ssh/ssh_config' > config && ssh -F config -G git.example").ok();
    }
}
