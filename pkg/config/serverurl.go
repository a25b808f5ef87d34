package config

import "net/url"

// CheckServerURL returns what is wrong with the URL at which agents reach the API server of the hub; "" if it is valid.
func CheckServerURL(server string) string {
	parsed, err := url.Parse(server)
	switch {
	case server == "":
		return "it is empty"
	case err != nil || parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http":
		return "it is not a URL like https://hub.example.com"
	case parsed.User != nil:
		return "it contains a user name; the agent authenticates with its token"
	}
	return ""
}
