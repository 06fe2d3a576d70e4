//! Whether a connection to the database is encrypted, and how the server proves its identity.
//!
//! Invariant: a server on another machine is verified, by the system's authorities or those of a file, unless the
//! connection string says `sslmode=disable`.

use std::path::Path;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Returns how to encrypt. `None`: not at all. Sets the mode of the configuration accordingly.
pub fn connector(config: &mut Config, authorities: Option<&Path>) -> Result<Option<MakeRustlsConnect>, String> {
    let is_here = config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => matches!(name.as_str(), "localhost" | "127.0.0.1" | "::1"),
    });
    match config.get_ssl_mode() {
        SslMode::Disable => return Ok(None),
        SslMode::Prefer if is_here && authorities.is_none() => {
            config.ssl_mode(SslMode::Disable);
            return Ok(None);
        }
        SslMode::Prefer => drop(config.ssl_mode(SslMode::Require)),
        _ => {}
    }
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(file) => {
            let why = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
            for found in CertificateDer::pem_file_iter(file).map_err(|e| why(&e))? {
                roots.add(found.map_err(|e| why(&e))?).map_err(|e| why(&e))?;
            }
        }
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    if roots.is_empty() {
        return Err("there are no certificates of authorities to verify the server by: --database-ca FILE".to_owned());
    }
    let provider = rustls::crypto::ring::default_provider();
    let client = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Some(MakeRustlsConnect::new(client)))
}
