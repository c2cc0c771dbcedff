//! The rules of a plan, as the key filter holds them.

use ironcage_model::{CageId, Printable, base64};
use ironcage_plan::Signing;
use ironcage_signing::gpg::{GpgKey, GpgRules};
use ironcage_signing::ssh::{ProvenHost, SshKey, SshRules};

pub(super) fn ssh(signing: &Signing) -> SshRules {
    let keys = signing.ssh.iter().flat_map(|ssh| &ssh.keys);
    let keys = keys.filter_map(|item| {
        let key = &item.what;
        let logins = key.logins.iter().map(|login| ProvenHost {
            host: login.host.clone(),
            keys: (login.keys.iter())
                .filter_map(|key| base64::decode(key))
                .collect(),
        });
        Some(SshKey {
            name: key.name.clone(),
            comment: key.name.clone(),
            blob: base64::decode(&key.public)?,
            signs_commits: key.signs_commits,
            logins: logins.collect(),
        })
    });
    SshRules {
        keys: keys.collect(),
    }
}

pub(super) fn gpg(signing: &Signing, cage: &CageId) -> GpgRules {
    let Some(gpg) = &signing.gpg else {
        return GpgRules::default();
    };
    let keys = gpg.keys.iter().map(|item| GpgKey {
        name: item.what.name.clone(),
        grips: item.what.grips.clone(),
    });
    let keys: Vec<GpgKey> = keys.collect();
    let names: Vec<String> = (keys.iter())
        .map(|key| Printable::new(&key.name).to_string())
        .collect();
    GpgRules {
        version: gpg.version.clone(),
        description: format!("The Ironcage cage {cage} signs with {}", names.join(" or ")),
        keys,
    }
}
