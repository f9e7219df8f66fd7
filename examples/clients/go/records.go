package main

// Records in the form of the ring: docs/reference/formats.md has the byte table.

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

const header, properties, unchecked = 32, 8, 32 // bytes; flags of a record

type record struct {
	offset, timestampNs uint64
	flags               uint16
	topic               string
	payload             []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// records returns the records of a frame, or an error if one is invalid.
func records(frame []byte, epoch uint32, next, size uint64) ([]record, error) {
	var found []record
	little, end := binary.LittleEndian, next+size
	for at := 0; at < len(frame); {
		rest := frame[at:]
		if len(rest) < header {
			return nil, fmt.Errorf("record at byte %d: it is cut", at)
		}
		length := int64(little.Uint32(rest))
		if length < header || length > int64(len(rest)) {
			return nil, fmt.Errorf("record at byte %d: wrong length", at)
		}
		data := rest[:length]
		one := record{offset: little.Uint64(data[8:]), timestampNs: little.Uint64(data[16:])}
		one.flags = little.Uint16(data[30:])
		begin := header + int(little.Uint16(data[28:]))
		if begin > len(data) {
			return nil, fmt.Errorf("record at byte %d: wrong length of its topic", at)
		}
		one.topic = string(data[header:begin])
		if one.flags&properties != 0 { // a Variable Byte Integer, and so many bytes
			length, width := binary.Uvarint(data[begin:])
			if width < 1 || width > 4 {
				return nil, fmt.Errorf("record at byte %d: properties without a length", at)
			}
			begin += width + int(length)
		}
		begin = (begin + 7) &^ 7
		checked := len(data)
		if one.flags&unchecked != 0 {
			checked = begin
		}
		if begin > len(data) || one.offset < next || one.offset >= end ||
			crc32.Update(epoch, castagnoli, data[8:checked]) != little.Uint32(data[4:]) {
			return nil, fmt.Errorf("record at byte %d: wrong offset or checksum", at)
		}
		one.payload = data[begin:]
		found, next = append(found, one), one.offset+1
		at += (len(data) + 31) &^ 31
	}
	return found, nil
}
