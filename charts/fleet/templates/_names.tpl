{{/*
A name as the hub makes it of parts: up to 63 characters as it is, a longer one cut and ended by a digest of the whole.
*/}}
{{- define "fleet.safeName" -}}
{{- if le (len .) 63 -}}
{{- . -}}
{{- else if regexMatch "^[0-9a-z]$" (substr 56 57 .) -}}
{{- printf "%s-%s" (substr 0 57 .) (sha256sum . | trunc 5) -}}
{{- else -}}
{{- printf "%s-%s" (substr 0 56 .) (sha256sum . | trunc 6) -}}
{{- end -}}
{{- end -}}
