//! What wrappers tell requests apart by.

/// One of the store's operations, by S3's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Operation {
    /// `PutObject`
    Put,
    /// `CreateMultipartUpload`
    CreateUpload,
    /// `UploadPart`
    PutPart,
    /// `UploadPartCopy`
    CopyPart,
    /// `ListParts`
    ListParts,
    /// `ListMultipartUploads`
    ListUploads,
    /// `CompleteMultipartUpload`
    Complete,
    /// `AbortMultipartUpload`
    Abort,
    /// `ListObjectsV2`
    List,
    /// `HeadObject`
    Head,
    /// `GetObject`
    Get,
    /// `CopyObject`
    Copy,
    /// `DeleteObject`
    Delete,
}

impl Operation {
    /// S3's name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Put => "PutObject",
            Operation::CreateUpload => "CreateMultipartUpload",
            Operation::PutPart => "UploadPart",
            Operation::CopyPart => "UploadPartCopy",
            Operation::ListParts => "ListParts",
            Operation::ListUploads => "ListMultipartUploads",
            Operation::Complete => "CompleteMultipartUpload",
            Operation::Abort => "AbortMultipartUpload",
            Operation::List => "ListObjectsV2",
            Operation::Head => "HeadObject",
            Operation::Get => "GetObject",
            Operation::Copy => "CopyObject",
            Operation::Delete => "DeleteObject",
        }
    }
}
