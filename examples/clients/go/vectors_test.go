package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

const vectors = "../../../tests/golden/consumers/vectors.txt"

func text(out *strings.Builder, value any) { // JSON without spaces, keys in their order
	switch it := value.(type) {
	case fields:
		for index, field := range it {
			out.WriteString(map[bool]string{true: "{", false: ","}[index == 0])
			text(out, field.key)
			out.WriteString(":")
			text(out, field.value)
		}
		out.WriteString(map[bool]string{true: "{}", false: "}"}[len(it) == 0])
	case []any:
		out.WriteString("[")
		for index, item := range it {
			if index > 0 {
				out.WriteString(",")
			}
			text(out, item)
		}
		out.WriteString("]")
	default:
		var plain bytes.Buffer
		encoder := json.NewEncoder(&plain)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(it)
		out.WriteString(strings.TrimSpace(plain.String()))
	}
}

func message(lines map[string][]string) (seen, wanted string) {
	data, _ := hex.DecodeString(lines["msgpack"][0])
	value, err := decode(data)
	if err != nil {
		return err.Error(), lines["json"][0]
	}
	var out strings.Builder
	text(&out, value)
	seen = out.String() + " " + hex.EncodeToString(encode(nil, value))
	return seen, lines["json"][0] + " " + lines["msgpack"][0]
}

func frame(lines map[string][]string) (seen, wanted string) {
	number := func(word string) uint64 { it, _ := strconv.ParseUint(lines[word][0], 10, 64); return it }
	data, _ := hex.DecodeString(lines["bytes"][0])
	found, err := records(data, uint32(number("epoch")), number("offset"), number("count"))
	var shown []string
	for _, it := range found {
		payload := hex.EncodeToString(it.payload)
		if payload == "" {
			payload = "-"
		}
		shown = append(shown, fmt.Sprintf("%d %d %d %s %s", it.offset, it.timestampNs, it.flags, it.topic, payload))
	}
	seen, wanted = strings.Join(shown, "\n"), strings.Join(lines["record"], "\n")
	if _, invalid := lines["invalid"]; invalid {
		wanted = "invalid"
	}
	if err != nil {
		seen = "invalid"
	}
	return seen, wanted
}

func TestVectors(t *testing.T) {
	content, err := os.ReadFile(vectors)
	if err != nil {
		t.Fatal(err)
	}
	type checker = func(map[string][]string) (seen, wanted string)
	checks := map[string]checker{"request": message, "answer": message, "frame": frame}
	checked := 0
	for _, stanza := range strings.Split(string(content), "\n\n") {
		title, rest, _ := strings.Cut(strings.TrimSpace(stanza), "\n")
		kind, _, _ := strings.Cut(title, " ")
		check, known := checks[kind]
		if !known {
			continue
		}
		lines := map[string][]string{}
		for _, line := range strings.Split(rest, "\n") {
			word, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			lines[word] = append(lines[word], value)
		}
		if seen, wanted := check(lines); seen != wanted {
			t.Errorf("%s:\n%s\ninstead of\n%s", title, seen, wanted)
		}
		checked++
	}
	if checked < 40 {
		t.Fatalf("only %d vectors", checked)
	}
}
