// Package v1alpha1 has the types of the API group fleet.cattle.io, which people, management servers, agents and the hub write.
//
// Every field says who sets it, when, and what it means. "The hub" is the controller of this project; for Bundles and
// BundleDeployments it may be Fleet's own, which then sets the same fields. "A person" is the author of the manifest, a management
// server included. Fields that other components own are kept as they are, unknown ones included.
//
// This text is not in doc.go because the generator writes that file.
package v1alpha1
