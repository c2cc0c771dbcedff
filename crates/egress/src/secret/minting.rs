//! Requests to Amazon that hand out credentials. Signed with the user's keys, their answers would
//! be keys that work without the proxy; so they are signed only where the policy names them.

use super::place::unescaped;
use super::scan::find;
use super::sigv4::{Claim, Signed, parameters};
use ironcage_model::{Destination, HostName, HostRule};

/// The type of a body whose parameters name an action.
const FORM: &[u8] = b"x-www-form-urlencoded";
/// Longest body that is read for an action whatever its type.
const SHORT_BODY: u64 = 64 * 1024;

/// Services that do little else.
const SERVICES: [&str; 12] = [
    "awsssoportal",
    "cognito-identity",
    "eks-auth",
    "iam",
    "oidc",
    "portal",
    "rolesanywhere",
    "signin",
    "sso",
    "sso-oauth",
    "ssoportal",
    "sts",
];

/// Words in the names of actions that hand some out, in whichever service.
const WORDS: [&str; 20] = [
    "accesskey",
    "apikey",
    "credential",
    "dataaccess",
    "embedurl",
    "exportcertificate",
    "initiateauth",
    "instanceaccess",
    "keypair",
    "keysandcertificate",
    "loginprofile",
    "loginurl",
    "masteruserpassword",
    "passworddata",
    "presigned",
    "provisioningclaim",
    "registrylogin",
    "streamingurl",
    "streamkey",
    "token",
];

/// Actions that hand some out without such a word: sessions, tunnels and activations come with a
/// token that works without the cage.
const ACTIONS: [(&str, &str); 9] = [
    ("acm-pca", "issuecertificate"),
    ("codebuild", "startsandboxconnection"),
    ("ecs", "executecommand"),
    ("gamelift", "getcomputeaccess"),
    ("iotsecuredtunneling", "opentunnel"),
    ("sagemaker", "startsession"),
    ("ssm", "createactivation"),
    ("ssm", "resumesession"),
    ("ssm", "startsession"),
];

/// What such a word is harmless after.
const HARMLESS: [&str; 12] = [
    "associate",
    "delete",
    "deregister",
    "describe",
    "disable",
    "disassociate",
    "import",
    "list",
    "revoke",
    "tag",
    "untag",
    "verify",
];

/// Actions that are a path: service, a part of the path (of one method, where that is named), name.
const PATHS: [(&str, &str, &str); 29] = [
    ("airflow", "/clitoken/", "CreateCliToken"),
    ("airflow", "/webtoken/", "CreateWebLoginToken"),
    ("amplifybackend", "/challenge", "CreateToken"),
    ("apigateway", "/apikeys", "CreateApiKey"),
    ("appsync", "/apikeys", "CreateApiKey"),
    (
        "bedrock-agentcore",
        "/identities/",
        "GetResourceOauth2Token",
    ),
    (
        "codeartifact",
        "/authorization-token",
        "GetAuthorizationToken",
    ),
    ("codecatalyst", "/accesstokens", "CreateAccessToken"),
    ("connect", "/user/federate/", "GetFederationToken"),
    ("datazone", "/credentials", "GetEnvironmentCredentials"),
    ("datazone", "/get-portal-login-url", "GetIamPortalLoginUrl"),
    // AssumeFleetRoleForRead, AssumeQueueRoleForUser and so on.
    ("deadline", "-roles", "AssumeRole"),
    (
        "emr-containers",
        "/credentials",
        "GetManagedEndpointSessionCredentials",
    ),
    ("emr-serverless", "/dashboard", "GetDashboardForJobRun"),
    (
        "finspace",
        "/credentials/",
        "GetProgrammaticAccessCredentials",
    ),
    ("geo", "/keys", "CreateKey"),
    ("grafana", "/apikeys", "CreateWorkspaceApiKey"),
    ("grafana", "/tokens", "CreateWorkspaceServiceAccountToken"),
    ("iot", "POST /certificates", "CreateCertificateFromCsr"),
    ("iot", "/keys-and-certificate", "CreateKeysAndCertificate"),
    ("iot", "/provisioning-claim", "CreateProvisioningClaim"),
    ("ivs", "/createchannel", "CreateChannel"),
    ("ivs", "/createparticipanttoken", "CreateParticipantToken"),
    ("ivs", "/createstreamkey", "CreateStreamKey"),
    ("ivschat", "/createchattoken", "CreateChatToken"),
    (
        "lakeformation",
        "/assumedecoratedrole",
        "AssumeDecoratedRoleWithSAML",
    ),
    (
        "lakeformation",
        "/gettemporary",
        "GetTemporaryGlueTableCredentials",
    ),
    ("quicksight", "embed-url", "GenerateEmbedUrl"),
    ("s3", "/accessgrantsinstance/dataaccess", "GetDataAccess"),
];

/// A request that hands out credentials.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Minting {
    /// All that a service does.
    Service(String),
    /// One action of a service.
    Action(String, String),
}

impl Minting {
    /// As a policy names it.
    pub(super) fn name(&self) -> String {
        match self {
            Minting::Service(service) => service.clone(),
            Minting::Action(service, action) => format!("{service}:{action}"),
        }
    }

    /// Whether a policy names it: as an action, or its service by a host without a star.
    pub(super) fn is_named(
        &self,
        credentials: &[String],
        hosts: &[HostRule],
        host: &HostName,
    ) -> bool {
        let exact = |rule: &HostRule| matches!(&rule.to, Destination::Name(name) if name == host);
        // A host of another service would not make a signature for this one harmless.
        let is_of = |service: &str| {
            let mut labels = host.as_str().split('.');
            labels.any(|label| label.trim_end_matches("-fips") == service)
        };
        match self {
            Minting::Service(service) if is_of(service) && hosts.iter().any(exact) => true,
            Minting::Action(service, _) if credentials.contains(service) => true,
            _ => credentials.contains(&self.name()),
        }
    }

    /// What a request would hand out, where it is one of these. A body is looked at where there
    /// is one (see `reads_body`).
    pub(super) fn of(
        claim: &Claim,
        host: &HostName,
        signed: &Signed<'_>,
        body: Option<&[u8]>,
    ) -> Option<Self> {
        let service = claim.service().to_ascii_lowercase();
        let first = host.as_str().split('.').next().unwrap_or_default();
        let first = first.trim_end_matches("-fips");
        // Buckets have names of their own choice.
        let by_host = SERVICES.contains(&first) && service != "s3";
        if let Some(known) = SERVICES.iter().find(|known| **known == service) {
            return Some(Minting::Service((*known).to_owned()));
        }
        if by_host {
            return Some(Minting::Service(first.to_owned()));
        }
        let action = |action: String| Minting::Action(service.clone(), action);
        let path = signed.target.split('?').next().unwrap_or_default();
        let path = plain_path(path);
        let is_at = |place: &str| match place.split_once(' ') {
            Some((method, part)) => method == signed.method && path.contains(part),
            None => path.contains(place),
        };
        let mut known = PATHS.iter();
        if let Some((_, _, name)) = known.find(|(of, place, _)| *of == service && is_at(place)) {
            return Some(action((*name).to_owned()));
        }
        let query = parameters(signed.target);
        if service.starts_with("s3") {
            let session = query.iter().any(|(name, _)| name == "session");
            return session.then(|| action("CreateSession".to_owned()));
        }
        let mut actions: Vec<String> = Vec::new();
        actions.extend(named(query));
        let form = body.map(|body| String::from_utf8_lossy(body).into_owned());
        actions.extend(
            form.into_iter()
                .flat_map(|form| named(parameters(&format!("?{form}")))),
        );
        let targets = signed
            .fields
            .iter()
            .filter(|(name, _)| name == "x-amz-target");
        actions.extend(targets.map(|(_, value)| {
            let text = String::from_utf8_lossy(value).into_owned();
            text.rsplit('.').next().unwrap_or_default().to_owned()
        }));
        if let Some((_, operation)) = path.rsplit_once("/operation/") {
            actions.push(operation.to_owned());
        }
        let mints = |name: &String| mints(&service, name);
        actions.into_iter().find(mints).map(action)
    }

    /// Whether the body of a request of this length is read for its action.
    ///
    /// # Errors
    /// Where it may name one and cannot be read.
    pub(super) fn reads_body(
        claim: &Claim,
        signed: &Signed<'_>,
        length: Option<u64>,
    ) -> Result<bool, &'static str> {
        if claim.service().starts_with("s3") {
            return Ok(false);
        }
        let said = |wanted: &'static str| {
            let fields = signed.fields.iter();
            fields
                .filter(move |(name, _)| name == wanted)
                .map(|(_, value)| value)
        };
        let is_form = |value: &Vec<u8>| find(&value.to_ascii_lowercase(), FORM).is_some();
        // Where nothing else names an action, a body is taken for a form whatever it says that
        // it is; what is long is none.
        let path = signed.target.split('?').next().unwrap_or_default();
        let is_named = said("x-amz-target").next().is_some() || plain_path(path) != "/";
        let is_short = !is_named && length.is_some_and(|length| length <= SHORT_BODY);
        let is_form = match said("content-type").count() {
            1 => said("content-type").any(is_form),
            _ => true,
        };
        if !(is_form || is_short) {
            return Ok(false);
        }
        let is_plain = |value: &Vec<u8>| value.eq_ignore_ascii_case(b"identity");
        match said("content-encoding").all(is_plain) || length == Some(0) {
            true => Ok(true),
            false if !is_form => Ok(false),
            false => Err(
                "its body is compressed, and may name an action that hands out credentials; set AWS_DISABLE_REQUEST_COMPRESSION=true",
            ),
        }
    }
}

/// A path as a server may read it: without escapes, empty parts and dots, in small letters.
fn plain_path(path: &str) -> String {
    let path = String::from_utf8_lossy(&unescaped(path.as_bytes())).to_ascii_lowercase();
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    let mut plain: String = parts.flat_map(|part| ["/", part]).collect();
    if path.ends_with('/') || plain.is_empty() {
        plain.push('/');
    }
    plain
}

/// Actions that parameters name.
fn named(parameters: Vec<(String, String)>) -> impl Iterator<Item = String> {
    let actions = parameters.into_iter();
    actions
        .filter(|(name, _)| name.eq_ignore_ascii_case("action"))
        .map(|(_, action)| action)
}

/// Whether an action hands out credentials, by its name.
fn mints(service: &str, action: &str) -> bool {
    let action = action.trim().to_ascii_lowercase();
    let mut known = ACTIONS.iter();
    let is_known = known.any(|(of, name)| *of == service && action.contains(name));
    let has_word = WORDS.iter().any(|word| action.contains(word));
    let assumes = action.contains("assume") && action.contains("role");
    let mut harmless = HARMLESS.iter();
    is_known || (has_word || assumes) && !harmless.any(|verb| action.starts_with(verb))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Fields;

    fn of(host: &str, service: &str, target: &str, fields: &[(&str, &str)], body: &str) -> String {
        let day = "20150830";
        let credential = format!(
            "AWS4-HMAC-SHA256 Credential=id/{day}/eu-west-1/{service}/aws4_request, SignedHeaders=host, Signature=0"
        );
        let field = |(name, value): &(&str, &str)| ((*name).into(), value.as_bytes().to_vec());
        let mut all: Fields = fields.iter().map(field).collect();
        all.push(("authorization".into(), credential.into_bytes()));
        all.push(("x-amz-date".into(), format!("{day}T123600Z").into_bytes()));
        let signed = Signed {
            method: "POST",
            target,
            host,
            fields: &all,
        };
        let claim = Claim::read(&signed).unwrap().unwrap();
        let name = HostName::from_ascii(host.as_bytes()).unwrap();
        let read = Minting::reads_body(&claim, &signed, Some(body.len() as u64));
        let looked = match read {
            Ok(read) => read.then_some(body.as_bytes()),
            Err(_) => return "unreadable".to_owned(),
        };
        let minting = Minting::of(&claim, &name, &signed, looked);
        minting.map_or(String::new(), |minting| minting.name())
    }

    #[test]
    fn what_hands_out_credentials_is_known_and_what_does_not_is_signed() {
        let form = (
            "content-type",
            "application/x-www-form-urlencoded; charset=utf-8",
        );
        let json = ("content-type", "application/x-amz-json-1.1");
        for (host, service, target, fields, body, is) in [
            (
                "sts.amazonaws.com",
                "sts",
                "/",
                &[form][..],
                "Action=AssumeRole",
                "sts",
            ),
            (
                "sts-fips.us-east-1.amazonaws.com",
                "x",
                "/",
                &[form],
                "",
                "sts",
            ),
            (
                "iam.amazonaws.com",
                "iam",
                "/?Action=CreateAccessKey",
                &[],
                "",
                "iam",
            ),
            (
                "ec2.eu-west-1.amazonaws.com",
                "ec2",
                "/",
                &[form],
                "Version=1&Action=CreateKeyPair",
                "ec2:CreateKeyPair",
            ),
            (
                "ec2.eu-west-1.amazonaws.com",
                "ec2",
                "/",
                &[],
                "Action=GetPassword%44ata",
                "ec2:GetPasswordData",
            ),
            (
                "ec2.eu-west-1.amazonaws.com",
                "ec2",
                "/?Action=CreateKeyPair",
                &[json],
                "",
                "ec2:CreateKeyPair",
            ),
            (
                "api.ecr.eu-west-1.amazonaws.com",
                "ecr",
                "/",
                &[
                    json,
                    (
                        "x-amz-target",
                        "AmazonEC2ContainerRegistry_V1.GetAuthorizationToken",
                    ),
                ],
                "{}",
                "ecr:GetAuthorizationToken",
            ),
            (
                "codeartifact.eu-west-1.amazonaws.com",
                "codeartifact",
                "/v1/authorization%2dtoken?domain=x",
                &[],
                "",
                "codeartifact:GetAuthorizationToken",
            ),
            (
                "b--x.s3express-a.eu-west-1.amazonaws.com",
                "s3express",
                "/?session",
                &[],
                "",
                "s3express:CreateSession",
            ),
            (
                "1.s3-control.eu-west-1.amazonaws.com",
                "s3",
                "/v20180820/accessgrantsinstance/dataaccess",
                &[],
                "",
                "s3:GetDataAccess",
            ),
            (
                "x.amazonaws.com",
                "x",
                "/service/X/operation/GetTemporaryCredentials",
                &[],
                "",
                "x:gettemporarycredentials",
            ),
            // A form that says that it is something else.
            (
                "ec2.eu-west-1.amazonaws.com",
                "ec2",
                "/",
                &[json],
                "Action=CreateKeyPair",
                "ec2:CreateKeyPair",
            ),
            (
                "ec2.eu-west-1.amazonaws.com",
                "ec2",
                "/",
                &[(
                    "content-type",
                    "text/plain, application/X-WWW-Form-urlencoded",
                )],
                "Action=CreateKeyPair",
                "ec2:CreateKeyPair",
            ),
            (
                "ec2.eu-west-1.amazonaws.com",
                "ec2",
                "/",
                &[form, ("content-encoding", "gzip")],
                "\u{1f}compressed",
                "unreadable",
            ),
            (
                "1.s3-control.eu-west-1.amazonaws.com",
                "s3",
                "/v20180820//accessgrantsinstance/.//dataaccess",
                &[],
                "",
                "s3:GetDataAccess",
            ),
            (
                "env.airflow.eu-west-1.amazonaws.com",
                "airflow",
                "/clitoken/env",
                &[json],
                "",
                "airflow:CreateCliToken",
            ),
            (
                "ssm.eu-west-1.amazonaws.com",
                "ssm",
                "/",
                &[json, ("x-amz-target", "AmazonSSM.StartSession")],
                "{}",
                "ssm:StartSession",
            ),
            (
                "workmail.eu-west-1.amazonaws.com",
                "workmail",
                "/",
                &[
                    json,
                    ("x-amz-target", "WorkMailService.AssumeImpersonationRole"),
                ],
                "{}",
                "workmail:AssumeImpersonationRole",
            ),
        ] {
            assert_eq!(
                of(host, service, target, fields, body),
                is,
                "{host} {target} {body}"
            );
        }
        for (host, service, target, fields, body) in [
            (
                "s3.eu-west-1.amazonaws.com",
                "s3",
                "/bucket/credentials",
                &[form][..],
                "Action=AssumeRole",
            ),
            ("sts.s3.eu-west-1.amazonaws.com", "s3", "/key", &[], ""),
            (
                "ec2.eu-west-1.amazonaws.com",
                "ec2",
                "/",
                &[form],
                "Action=DescribeKeyPairs",
            ),
            (
                "ec2.eu-west-1.amazonaws.com",
                "ec2",
                "/",
                &[form],
                "Action=RunInstances&X=CreateKeyPair",
            ),
            (
                "dynamodb.eu-west-1.amazonaws.com",
                "dynamodb",
                "/",
                &[json, ("x-amz-target", "DynamoDB_20120810.GetItem")],
                "{}",
            ),
            // What names its action elsewhere may hold any text.
            (
                "logs.eu-west-1.amazonaws.com",
                "logs",
                "/",
                &[json, ("x-amz-target", "Logs_20140328.PutLogEvents")],
                "{\"m\":\"&Action=AssumeRole&\"}",
            ),
            (
                "glue.eu-west-1.amazonaws.com",
                "glue",
                "/",
                &[json, ("x-amz-target", "AWSGlue.CreateSession")],
                "{}",
            ),
            (
                "monitoring.eu-west-1.amazonaws.com",
                "monitoring",
                "/",
                &[form],
                "Action=PutMetricData&X=1",
            ),
        ] {
            assert_eq!(
                of(host, service, target, fields, body),
                "",
                "{host} {target} {body}"
            );
        }
        let name = |host: &str| HostName::from_ascii(host.as_bytes()).unwrap();
        let sts = Minting::Service("sts".into());
        let key = Minting::Action("ec2".into(), "CreateKeyPair".into());
        let host = name("sts.amazonaws.com");
        let rules = |text: &str| vec![text.parse::<HostRule>().unwrap()];
        assert!(!sts.is_named(&[], &rules("**.amazonaws.com"), &host));
        assert!(sts.is_named(&[], &rules("sts.amazonaws.com"), &host));
        assert!(sts.is_named(&["sts".into()], &rules("**.amazonaws.com"), &host));
        let fips = name("sts-fips.eu-west-1.amazonaws.com");
        assert!(sts.is_named(&[], &rules("sts-fips.eu-west-1.amazonaws.com"), &fips));
        let host = name("ec2.amazonaws.com");
        assert!(!sts.is_named(&[], &rules("ec2.amazonaws.com"), &host));
        assert!(!key.is_named(&[], &rules("ec2.amazonaws.com"), &host));
        assert!(key.is_named(&["ec2:CreateKeyPair".into()], &[], &host));
        assert!(key.is_named(&["ec2".into()], &[], &host));
    }
}
