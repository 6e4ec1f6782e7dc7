//! Encryption: whom to trust.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::config::Sql;
use super::fault::{Class, Fault};
use crate::error::ErrorKind;

/// The certificates to trust: those of the file, or the system's.
pub(super) fn roots(sql: &Sql) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let invalid = |text: String| Fault::new(Class::Refused(ErrorKind::Invalid), text);
    let Some(path) = &sql.ca else {
        let found = rustls_native_certs::load_native_certs();
        if found.certs.is_empty() {
            return Err(invalid("the system has no certificates to trust; name some: ca=".into()));
        }
        return Ok(found.certs);
    };
    let unreadable = || invalid(format!("the certificates in {} cannot be read", path.display()));
    let pem = std::fs::read(path).map_err(|error| unreadable().because(error))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(invalid(format!("{} holds no certificate", path.display()))),
        Err(error) => Err(unreadable().because(error)),
    }
}

/// A client that trusts them.
#[cfg(feature = "postgres")]
pub(super) fn client(sql: &Sql) -> Result<rustls::ClientConfig, Fault> {
    let mut trusted = rustls::RootCertStore::empty();
    trusted.add_parsable_certificates(roots(sql)?);
    let failed = |error: rustls::Error| {
        Fault::new(Class::Refused(ErrorKind::Unexpected), "encryption cannot be set up")
            .because(error)
    };
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    Ok(builder.with_root_certificates(trusted).with_no_client_auth())
}
