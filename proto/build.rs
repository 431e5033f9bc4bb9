//! Compiles the .proto files without protoc: protox is a pure Rust compiler.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["tidegate/v1/api.proto", "tidegate/journal/v1/journal.proto"];
    for file in ["common", "api", "link"] {
        println!("cargo:rerun-if-changed=tidegate/v1/{file}.proto");
    }
    println!("cargo:rerun-if-changed=tidegate/journal/v1/journal.proto");
    let descriptors = protox::compile(files, ["."])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
