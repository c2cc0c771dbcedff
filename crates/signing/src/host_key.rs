//! Host keys: whether a server signed for a session.

use crate::wire::Fields;
use ironcage_model::{SigningReason, base64};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA512, RsaPublicKeyComponents, UnparsedPublicKey,
};
use sha2::{Digest as _, Sha256};

/// The fingerprint of a public key, as OpenSSH shows it.
pub fn fingerprint(blob: &[u8]) -> String {
    let digest = Sha256::digest(blob);
    format!("SHA256:{}", base64::encode(&digest).trim_end_matches('='))
}

/// Whether the owner of a host key signed this session. The session's id is a hash over the key
/// exchange, this host key included: nobody else can have a session with the same id.
pub(crate) fn verify(
    host_key: &[u8],
    session: &[u8],
    signature: &[u8],
) -> Result<(), SigningReason> {
    let malformed = || SigningReason::KeyRequestMalformed;
    let mut key = Fields(host_key);
    let kind = key.text().ok_or_else(malformed)?;
    let mut signed = Fields(signature);
    let signed_kind = signed.text().ok_or_else(malformed)?;
    let signature = signed.string().ok_or_else(malformed)?;
    signed.end().ok_or_else(malformed)?;
    let holds = match kind {
        "ssh-ed25519" if signed_kind == kind => {
            let public = key.string().ok_or_else(malformed)?;
            key.end().ok_or_else(malformed)?;
            UnparsedPublicKey::new(&ED25519, public).verify(session, signature)
        }
        "ecdsa-sha2-nistp256" | "ecdsa-sha2-nistp384" if signed_kind == kind => {
            let _curve = key.string().ok_or_else(malformed)?;
            let point = key.string().ok_or_else(malformed)?;
            key.end().ok_or_else(malformed)?;
            let (algorithm, width) = match kind {
                "ecdsa-sha2-nistp256" => (&ECDSA_P256_SHA256_FIXED, 32),
                _ => (&ECDSA_P384_SHA384_FIXED, 48),
            };
            let mut parts = Fields(signature);
            let mut both = Vec::with_capacity(2 * width);
            for _ in 0..2 {
                let part = parts.string().ok_or_else(malformed)?;
                both.extend(padded(part, width).ok_or_else(malformed)?);
            }
            parts.end().ok_or_else(malformed)?;
            UnparsedPublicKey::new(algorithm, point).verify(session, &both)
        }
        "ssh-rsa" => {
            let e = key.string().ok_or_else(malformed)?;
            let n = key.string().ok_or_else(malformed)?;
            key.end().ok_or_else(malformed)?;
            let algorithm = match signed_kind {
                "rsa-sha2-256" => &RSA_PKCS1_2048_8192_SHA256,
                "rsa-sha2-512" => &RSA_PKCS1_2048_8192_SHA512,
                // SHA-1 is broken: a signature by it proves nothing.
                _ => return Err(SigningReason::KeyHostSignature),
            };
            let n = without_zeros(n);
            let signature = padded(signature, n.len()).ok_or_else(malformed)?;
            let public = RsaPublicKeyComponents {
                n,
                e: without_zeros(e),
            };
            public.verify(algorithm, session, &signature)
        }
        "ssh-ed25519" | "ecdsa-sha2-nistp256" | "ecdsa-sha2-nistp384" => {
            return Err(SigningReason::KeyHostSignature);
        }
        kind => {
            let kind = kind.chars().take(64).collect();
            return Err(SigningReason::KeyHostKind { kind });
        }
    };
    holds.map_err(|_| SigningReason::KeyHostSignature)
}

/// A number without the zeros before it.
fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

/// A number with as many zeros before it as make it this wide.
fn padded(number: &[u8], width: usize) -> Option<Vec<u8>> {
    let number = without_zeros(number);
    let zeros = width.checked_sub(number.len())?;
    let mut wide = vec![0; zeros];
    wide.extend_from_slice(number);
    Some(wide)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::put_string;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};

    fn strings(parts: &[&[u8]]) -> Vec<u8> {
        let mut all = Vec::new();
        parts.iter().for_each(|part| put_string(&mut all, part));
        all
    }

    /// A number as SSH writes it: without zeros, and with one where it would be negative.
    fn mpint(bytes: &[u8]) -> Vec<u8> {
        let bytes = without_zeros(bytes);
        let mut number = Vec::new();
        if bytes.first().is_some_and(|first| *first >= 0x80) {
            number.push(0);
        }
        number.extend_from_slice(bytes);
        number
    }

    #[test]
    fn a_signature_holds_for_its_key_and_session_alone() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let other = Ed25519KeyPair::from_seed_unchecked(&[8; 32]).unwrap();
        let key = strings(&[b"ssh-ed25519", pair.public_key().as_ref()]);
        let signature = strings(&[b"ssh-ed25519", pair.sign(b"session").as_ref()]);
        assert_eq!(verify(&key, b"session", &signature), Ok(()));
        let wrong = Err(SigningReason::KeyHostSignature);
        assert_eq!(verify(&key, b"another", &signature), wrong);
        let foreign = strings(&[b"ssh-ed25519", other.sign(b"session").as_ref()]);
        assert_eq!(verify(&key, b"session", &foreign), wrong);
        let renamed = strings(&[b"ssh-rsa", pair.sign(b"session").as_ref()]);
        assert_eq!(verify(&key, b"session", &renamed), wrong);
    }

    #[test]
    fn curves_of_nist_are_verified_whatever_the_length_of_their_numbers() {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap();
        let kind = b"ecdsa-sha2-nistp256";
        let key = strings(&[kind, b"nistp256", pair.public_key().as_ref()]);
        // Some have numbers that are shorter, or need a zero before them.
        for _ in 0..64 {
            let both = pair.sign(&random, b"session").unwrap();
            let (r, s) = both.as_ref().split_at(32);
            let numbers = strings(&[&mpint(r), &mpint(s)]);
            let signature = strings(&[kind, &numbers]);
            assert_eq!(verify(&key, b"session", &signature), Ok(()));
            let wrong = Err(SigningReason::KeyHostSignature);
            assert_eq!(verify(&key, b"sessioN", &signature), wrong);
        }
    }

    #[test]
    fn unknown_kinds_and_broken_keys_prove_nothing() {
        let odd = strings(&[b"ssh-odd", b"x"]);
        let kind = "ssh-odd".to_owned();
        assert_eq!(
            verify(&odd, b"s", &strings(&[b"ssh-odd", b"y"])),
            Err(SigningReason::KeyHostKind { kind })
        );
        for key in [&b""[..], b"\0\0\0\xff", &strings(&[b"ssh-ed25519"])] {
            let signature = strings(&[b"ssh-ed25519", b"y"]);
            assert_eq!(
                verify(key, b"s", &signature),
                Err(SigningReason::KeyRequestMalformed)
            );
        }
    }

    #[test]
    fn a_fingerprint_is_the_one_that_openssh_shows() {
        let key =
            base64::decode("AAAAC3NzaC1lZDI1NTE5AAAAINudDhn03Dtd3KHFEYhXEZ1UTD0soyib8Ymdvr0W0QTO");
        let shown = "SHA256:6S6qBas9rNyLdbM6HaOForoFRnqXZxL0HQcYJvdnjlg";
        assert_eq!(fingerprint(&key.unwrap()), shown);
    }
}
