package llama

import (
	"io"
	"os"
)

// filled writes data into a new file and rewinds it; on error the file is closed.
func filled(file *os.File, data []byte) (*os.File, error) {
	if _, err := file.Write(data); err != nil {
		return nil, closeAfter(file, err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, closeAfter(file, err)
	}
	return file, nil
}

func closeAfter(file *os.File, err error) error {
	_ = file.Close() // the earlier error is the one to report
	return err
}
