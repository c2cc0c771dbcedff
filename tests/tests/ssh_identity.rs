//! ssh inside has settings of the cage's own, which it takes, and nothing of the user's.

use ironcage_tests::{either, skip};
use std::path::Path;

either! {
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

    fn the_keys_of_allowed_hosts_are_known_as_the_user_knows_them(stage) {
        if !Path::new("/usr/bin/ssh").exists() {
            skip("needs openssh-client");
            return;
        }
        let known = "
            mkdir -p -m 700 ~/.ssh && cd ~/.ssh && ssh-keygen -q -t ed25519 -N '' -C '' -f key
            for host in git.example,10.0.0.7 secret.example '[port.example]:2222'; do echo $host $(cat key.pub) canary; done > known_hosts
            echo hashed.example $(cat key.pub) > hashed && ssh-keygen -q -H -f hashed && cat hashed >> known_hosts
        ";
        stage.sh_outside(known).ok();
        let hosts = ["git.example:22", "port.example:2222", "hashed.example:22", "web.example"];
        let flags: Vec<&str> = hosts.iter().flat_map(|host| ["--allow-host", *host]).collect();
        let look = "cut -d ' ' -f 1 /etc/ssh/ssh_known_hosts | grep -v '#'; grep -c canary /etc/ssh/ssh_known_hosts; \
                    ssh-keygen -l -F hashed.example -f /etc/ssh/ssh_known_hosts";
        let ran = stage.sh_with(&flags, look).ok();
        assert!(ran.stdout().starts_with("git.example\n[port.example]:2222\nhashed.example\n0\n"), "{ran:?}");
        assert!(ran.stdout().contains("ED25519"), "{ran:?}");
        let closed = stage.sh("grep -vc '#' /etc/ssh/ssh_known_hosts").stdout();
        assert_eq!(closed, "0\n", "no host can be reached, so none is known");
    }
}
