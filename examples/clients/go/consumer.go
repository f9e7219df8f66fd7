// Consumer of a group in Go, with the standard library only.
//
//	go run . SOCKET GROUP FILTER COUNT [SPEED]   print COUNT records, acknowledge them, and leave
//	go test                                      check codec and record decoder against the test vectors
//
// docs/reference/consumer-protocol.md describes the protocol; SOCKET is consumers.sock in the runtime
// directory. A request is sent each 500 ms or more often, so the member needs no heartbeats of its own. With
// SPEED the members of the group together replay at the original speed times SPEED.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
)

const version, frameMax = 2, 64 << 20

// ---- ZMTP 3.1: a DEALER without libzmq ----

type connection struct {
	socket net.Conn
	input  *bufio.Reader
	id     int64
}

func (c *connection) send(content []byte, flags byte) error {
	out := []byte{flags, byte(len(content))}
	if len(content) > 255 {
		out = binary.BigEndian.AppendUint64([]byte{flags | 2}, uint64(len(content)))
	}
	_, err := c.socket.Write(append(out, content...))
	return err
}

func (c *connection) frame() (flags byte, content []byte, err error) {
	size := make([]byte, 8)
	if flags, err = c.input.ReadByte(); err != nil {
		return
	}
	width := 1 + int(flags&2)/2*7
	if _, err = io.ReadFull(c.input, size[8-width:]); err != nil {
		return
	}
	length := binary.BigEndian.Uint64(size)
	if length > frameMax {
		return flags, nil, fmt.Errorf("a frame of %d bytes", length)
	}
	content = make([]byte, length)
	_, err = io.ReadFull(c.input, content)
	return
}

func (c *connection) open() error { // each side awaits the greeting of the other one before READY
	greeting := make([]byte, 64)
	copy(greeting, "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x01NULL")
	if _, err := c.socket.Write(greeting); err != nil {
		return err
	}
	if _, err := io.ReadFull(c.input, greeting); err != nil {
		return err
	}
	if err := c.send([]byte("\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"), 4); err != nil {
		return err
	}
	flags, _, err := c.frame()
	if err == nil && flags&4 == 0 {
		err = errors.New("a message before READY")
	}
	return err
}

func (c *connection) message() (frames [][]byte, err error) {
	for {
		flags, content, err := c.frame()
		if err != nil {
			return nil, err
		}
		if flags&4 != 0 {
			if len(content) >= 7 && string(content[:5]) == "\x04PING" {
				err = c.send(append([]byte("\x04PONG"), content[7:]...), 4)
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		frames = append(frames, content)
		if flags&1 == 0 {
			return frames, nil
		}
	}
}

// request sends a request and returns its answer with the frames behind it.
func (c *connection) request(op string, keys ...pair) (fields, [][]byte, error) {
	c.id++
	message := append(fields{{"op", op}, {"id", c.id}, {"version", int64(version)}}, keys...)
	if err := c.send(encode(nil, message), 0); err != nil {
		return nil, nil, err
	}
	for {
		frames, err := c.message()
		if err != nil {
			return nil, nil, err
		}
		answer, err := decode(frames[0])
		switch {
		case err != nil:
			return nil, nil, err
		case answer.number("id") != c.id:
			continue
		case answer.text("op") == "failed":
			return nil, nil, fmt.Errorf("%s: %s (%s)", op, answer.text("error"), answer.text("code"))
		}
		return answer, frames[1:], nil
	}
}

// ---- the command ----

func consume(path, group, filter string, count int64, settings fields) error {
	socket, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	defer socket.Close()
	c := &connection{socket: socket, input: bufio.NewReader(socket)}
	if err := c.open(); err != nil {
		return err
	}
	joining := fields{{"group", group}, {"filters", []any{filter}}, {"start", "oldest"}, {"name", "go"}}
	joining = append(joining, pair{"settings", settings})
	joined, _, err := c.request("join", joining...)
	if err != nil {
		return err
	}
	member := fields{{"group", group}, {"member", joined.text("member")}}
	for seen := int64(0); seen < count; {
		limits := fields{{"max_wait_ms", int64(500)}, {"max_records", count - seen}}
		answer, frames, err := c.request("fetch", append(member[:2:2], limits...)...)
		if err != nil {
			return err
		}
		batches, _ := answer.get("batches").([]any)
		for index, it := range batches {
			accepted, err := c.process(member, answer.number("generation"), it.(fields), frames[index])
			if err != nil {
				return err
			}
			seen += accepted
		}
	}
	_, _, err = c.request("leave", member...)
	return err
}

// process prints the records of a batch and acknowledges them; it returns the number of accepted ones.
func (c *connection) process(member fields, generation int64, batch fields, frame []byte) (int64, error) {
	epoch, offset, count := batch.number("epoch"), batch.number("offset"), batch.number("count")
	found, err := records(frame, uint32(epoch), uint64(offset), uint64(count))
	if err != nil {
		return 0, err
	}
	runs := []any{}
	for _, one := range found {
		fmt.Printf("%d %s %s\n", one.offset, one.topic, one.payload)
		runs = append(runs, []any{int64(one.offset), int64(1)})
	}
	ack := fields{{"generation", generation}, {"ring", batch.text("ring")}, {"epoch", epoch}, {"runs", runs}}
	acked, _, err := c.request("ack", append(member[:2:2], ack...)...)
	if refused := acked.number("refused"); refused > 0 {
		fmt.Fprintf(os.Stderr, "%d acknowledgements came too late\n", refused)
	}
	return acked.number("accepted"), err
}

func main() {
	if len(os.Args) != 5 && len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: consumer SOCKET GROUP FILTER COUNT [SPEED]")
		os.Exit(2)
	}
	count, err := strconv.ParseInt(os.Args[4], 10, 64)
	settings := fields{}
	if err == nil && len(os.Args) == 6 {
		var speed float64
		speed, err = strconv.ParseFloat(os.Args[5], 64)
		settings = fields{{"speed_permille", int64(math.Round(speed * 1000))}}
	}
	if err == nil {
		err = consume(os.Args[1], os.Args[2], os.Args[3], count, settings)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
