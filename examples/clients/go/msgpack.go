package main

// msgpack: the types that the protocol uses. Integers have up to 63 bits and a sign.

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A map keeps the order of its keys.
type pair struct {
	key   string
	value any
}
type fields []pair

func (m fields) get(key string) any {
	for _, it := range m {
		if it.key == key {
			return it.value
		}
	}
	return nil
}

func (m fields) number(key string) int64 { number, _ := m.get(key).(int64); return number }
func (m fields) text(key string) string  { text, _ := m.get(key).(string); return text }

func count(out []byte, number, fix, fixMax int, tags [3]byte) []byte { // of a string, array or map
	switch {
	case number <= fixMax:
		return append(out, byte(fix|number))
	case number < 1<<8 && tags[0] != 0:
		return append(out, tags[0], byte(number))
	case number < 1<<16:
		return binary.BigEndian.AppendUint16(append(out, tags[1]), uint16(number))
	}
	return binary.BigEndian.AppendUint32(append(out, tags[2]), uint32(number))
}

func integer(out []byte, number int64) []byte {
	if number >= -32 && number < 128 {
		return append(out, byte(number))
	}
	tag, most := byte(0xcc), uint64(number)
	if number < 0 {
		tag, most = 0xd0, uint64(^number)<<1 // one more bit, for the sign
	}
	switch whole := uint64(number); {
	case most < 1<<8:
		return append(out, tag, byte(whole))
	case most < 1<<16:
		return binary.BigEndian.AppendUint16(append(out, tag+1), uint16(whole))
	case most < 1<<32:
		return binary.BigEndian.AppendUint32(append(out, tag+2), uint32(whole))
	default:
		return binary.BigEndian.AppendUint64(append(out, tag+3), whole)
	}
}

func encode(out []byte, value any) []byte {
	switch it := value.(type) {
	case nil:
		return append(out, 0xc0)
	case bool:
		return append(out, map[bool]byte{false: 0xc2, true: 0xc3}[it])
	case int64:
		return integer(out, it)
	case string:
		return append(count(out, len(it), 0xa0, 31, [3]byte{0xd9, 0xda, 0xdb}), it...)
	case []any:
		out = count(out, len(it), 0x90, 15, [3]byte{0, 0xdc, 0xdd})
		for _, item := range it {
			out = encode(out, item)
		}
	case fields:
		out = count(out, len(it), 0x80, 15, [3]byte{0, 0xde, 0xdf})
		for _, field := range it {
			out = encode(encode(out, field.key), field.value)
		}
	default:
		panic(fmt.Sprintf("%T is not part of the protocol", value))
	}
	return out
}

type decoder struct{ rest []byte }

var errCut = errors.New("the message is cut")

func (d *decoder) take(size uint64) []byte { // panics with errCut; decode() returns it
	if size > uint64(len(d.rest)) {
		panic(errCut)
	}
	taken := d.rest[:size]
	d.rest = d.rest[size:]
	return taken
}

func (d *decoder) unsigned(size uint64) (number uint64) {
	for _, octet := range d.take(size) {
		number = number<<8 | uint64(octet)
	}
	return number
}

func (d *decoder) array(size uint64) any {
	items := []any{}
	for ; size > 0; size-- {
		items = append(items, d.one())
	}
	return items
}

func (d *decoder) fields(size uint64) any {
	found := fields{}
	for ; size > 0; size-- {
		key, _ := d.one().(string)
		found = append(found, pair{key, d.one()})
	}
	return found
}

func (d *decoder) one() any {
	tag := d.take(1)[0]
	switch {
	case tag < 0x80 || tag >= 0xe0:
		return int64(int8(tag))
	case tag < 0x90:
		return d.fields(uint64(tag & 15))
	case tag < 0xa0:
		return d.array(uint64(tag & 15))
	case tag < 0xc0:
		return string(d.take(uint64(tag & 31)))
	case tag == 0xc0:
		return nil
	case tag == 0xc2 || tag == 0xc3:
		return tag == 0xc3
	case tag >= 0xcc && tag <= 0xcf:
		return int64(d.unsigned(1 << (tag - 0xcc)))
	case tag >= 0xd0 && tag <= 0xd3:
		size := uint64(1) << (tag - 0xd0)
		return int64(d.unsigned(size)<<(64-8*size)) >> (64 - 8*size)
	case tag >= 0xd9 && tag <= 0xdb:
		return string(d.take(d.unsigned(1 << (tag - 0xd9))))
	case tag == 0xdc || tag == 0xdd:
		return d.array(d.unsigned(2 << (tag - 0xdc)))
	case tag == 0xde || tag == 0xdf:
		return d.fields(d.unsigned(2 << (tag - 0xde)))
	}
	panic(fmt.Errorf("msgpack type %#x is not part of the protocol", tag))
}

func decode(data []byte) (message fields, err error) {
	defer func() {
		if cause, isError := recover().(error); isError {
			err = cause
		}
	}()
	d := decoder{data}
	message, isMap := d.one().(fields)
	if !isMap || len(d.rest) > 0 {
		return nil, errors.New("a message is one map")
	}
	return message, nil
}
