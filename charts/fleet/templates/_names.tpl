{{/*
A name as the hub derives it: a name of more than 63 characters is cut, and ends in a digest of the whole name.
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
