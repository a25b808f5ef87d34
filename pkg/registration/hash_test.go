package registration

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	hashOfNil   = "a7408a8b23aff882d8b95165eb24c3a6b519468539eb2b3072f529cb"
	hashOfEmpty = "106eab90d1bb9f41a6bc937ccb191f4ff67809fffb93ce4a6e81822d"
	hashOfFoo   = "10a98acee3877e0d0f97c1e17ef4f7228193a707e9f6d943947f90fc"
)

func TestStatusHash(t *testing.T) {
	for _, row := range []struct {
		name  string
		value []byte
		want  string
	}{
		{"nothing", nil, hashOfNil},
		{"an empty value is not nothing", []byte{}, hashOfEmpty},
		{"bytes count as base64", []byte("foo"), hashOfFoo},
	} {
		t.Run(row.name, func(t *testing.T) {
			hash, err := StatusHash(row.value)
			require.NoError(t, err)
			assert.Equal(t, row.want, hash)
		})
	}
}

func TestCAHashOfEmpty(t *testing.T) {
	assert.Equal(t, hashOfNil, CAHash(nil))
	assert.Equal(t, hashOfNil, CAHash([]byte{}))
	assert.Equal(t, hashOfFoo, CAHash([]byte("foo")))
}

func TestStatusHashWithoutJSON(t *testing.T) {
	_, err := StatusHash(make(chan int))
	assert.ErrorContains(t, err, "chan int")
}
